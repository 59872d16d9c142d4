import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.env.OUTRIDER_URL + "/v1";
const provider = createOpenAICompatible({ name: "outrider", baseURL, apiKey: "none", supportsStructuredOutputs: true });
const compatible = provider("nano");
const openai = createOpenAI({ baseURL, apiKey: "none" });
const prompt = "Write a short story about a fox.";
const calls = {
  async generate() {
    return (await generateText({ model: compatible, prompt, maxOutputTokens: 10 })).text;
  },
  async stream() {
    let text = "";
    for await (const piece of streamText({ model: compatible, prompt, maxOutputTokens: 10 }).textStream) text += piece;
    return text;
  },
  async tools() {
    const inputSchema = z.object({ sunny: z.boolean() });
    const weather = tool({ description: "The weather", inputSchema, execute: async () => "so" });
    const answer = await generateText({ model: compatible, prompt, tools: { weather }, toolChoice: "required",
                                        maxOutputTokens: 200 });
    return answer.toolCalls.length || answer.steps.length;
  },
  async object() {
    const schema = z.object({ kind: z.boolean(), legs: z.boolean() });
    return (await generateObject({ model: compatible, schema, prompt, temperature: 0, maxOutputTokens: 300 })).object;
  },
  async responses() {
    return (await generateText({ model: openai("nano"), prompt, maxOutputTokens: 20 })).text;
  },
  async turns() {
    const asked = [{ role: "user", content: prompt }], model = openai("nano");
    const { response } = await generateText({ model, messages: asked, maxOutputTokens: 20 });
    const messages = [...asked, ...response.messages, { role: "user", content: "Go on." }];
    return (await generateText({ model, messages, maxOutputTokens: 20 })).text;
  },
  async chat() {
    return (await generateText({ model: openai.chat("nano"), prompt, maxOutputTokens: 10 })).text;
  },
};

let failures = 0;
for (const [name, call] of Object.entries(calls)) {
  try {
    if (!(await call())) throw new Error("nothing came");
    console.log(`  vercel ai: ${name}: works`);
  } catch (error) {
    ++failures;
    console.log(`  vercel ai: ${name}: ${error}`);
  }
}
process.exit(failures ? 1 : 0);
