import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.OUTRIDER_URL + "/v1", apiKey: "none" });
const messages = [{ role: "user", content: "Write a short story about a fox." }];
const calls = {
  async chat() {
    const answer = await client.chat.completions.create({ model: "nano", messages, max_tokens: 10 });
    return answer.choices[0].message.content;
  },
  async stream() {
    let text = "";
    const stream = await client.chat.completions.create({ model: "nano", messages, max_tokens: 10, stream: true });
    for await (const chunk of stream)
      text += chunk.choices[0]?.delta?.content ?? "";
    return text;
  },
  async runner() {
    const stream = client.chat.completions.stream({ model: "nano", messages, max_tokens: 10 });
    return await stream.finalContent();
  },
  async responses() {
    const answer = await client.responses.create({ model: "nano", input: "Write a story.", max_output_tokens: 10 });
    return answer.output_text;
  },
  async models() {
    return (await client.models.list()).data[0].id;
  },
};

let failures = 0;
for (const [name, call] of Object.entries(calls)) {
  try {
    if (!(await call())) throw new Error("nothing came");
    console.log(`  node openai: ${name}: works`);
  } catch (error) {
    ++failures;
    console.log(`  node openai: ${name}: ${error}`);
  }
}
process.exit(failures ? 1 : 0);
