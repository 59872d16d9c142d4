/* Tells a story with Outrider's C interface, then writes it again step by step and compares.
 *
 *   c_api_example local  TARGET_DIR ASSISTANT_DIR [PROMPT]
 *   c_api_example remote tcp://HOST:PORT TARGET_DIR [PROMPT]
 *
 *   cc -std=c11 c_api_example.c $(pkg-config --cflags --libs outrider)
 */
#include <outrider.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kTokensMax = 96, kPromptMax = 4096, kDrafts = 4 };

static outrider_error error;

static void check(outrider_status status, const char* what) {
  if (status == OUTRIDER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, outrider_status_name(status), error.message);
  exit(1);
}

static int print_text(void* user, const int32_t* tokens, size_t count, const char* text, size_t bytes) {
  (void)user, (void)tokens, (void)count;
  fwrite(text, 1, bytes, stdout);
  fflush(stdout);
  return 0; /* go on */
}

/* What pair_generate_speculative does, by hand. */
static size_t write_by_hand(outrider_pair* pair, const int32_t* prompt, size_t prompt_count, int32_t* story) {
  outrider_session* session = NULL;
  check(pair_session_open(pair, &session, &error), "pair_session_open");

  size_t count = 0;
  check(pair_prefill(session, prompt, prompt_count, &story[count++], &error), "pair_prefill");
  while (count < kTokensMax && !outrider_is_stop_token(pair, story[count - 1])) {
    int32_t drafts[kDrafts];
    size_t drafted = 0, accepted = 0;
    int32_t next = 0;
    check(pair_draft_tokens(session, kDrafts, drafts, &drafted, &error), "pair_draft_tokens");
    if (drafted == 0) { /* no assistant: one plain step */
      check(pair_decode_one(session, &story[count++], &error), "pair_decode_one");
      continue;
    }
    check(pair_verify_tokens(session, drafts, drafted, &accepted, &next, &error), "pair_verify_tokens");
    for (size_t i = 0; i <= accepted && count < kTokensMax; ++i) {
      const int32_t token = i < accepted ? drafts[i] : next;
      story[count++] = token;
      if (outrider_is_stop_token(pair, token)) break;
    }
  }
  pair_session_close(session);
  return count;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: c_api_example local TARGET ASSISTANT [PROMPT] | remote ADDRESS TARGET [PROMPT]\n");
    return 2;
  }
  if (outrider_abi_version() != OUTRIDER_ABI_VERSION) {
    fprintf(stderr, "liboutrider has ABI %u, wanted %u\n", (unsigned)outrider_abi_version(), (unsigned)OUTRIDER_ABI_VERSION);
    return 1;
  }
  outrider_pair* pair = NULL;
  if (strcmp(argv[1], "local") == 0) {
    check(pair_open_local(argv[2], argv[3], "f32", 0, &pair, &error), "pair_open_local");
  } else {
    check(pair_open_remote(argv[2], argv[3], &pair, &error), "pair_open_remote");
  }

  const char* text = argc > 4 ? argv[4] : "Tell me a story about a lighthouse.";
  int32_t prompt[kPromptMax];
  size_t prompt_count = 0;
  check(outrider_encode_user_turn(pair, text, strlen(text), prompt, kPromptMax, &prompt_count, &error), "outrider_encode_user_turn");

  outrider_generate_options options = OUTRIDER_GENERATE_OPTIONS_INIT;
  options.max_tokens = kTokensMax;
  options.draft_length = kDrafts;
  options.on_tokens = print_text;
  outrider_generation generation = OUTRIDER_GENERATION_INIT;
  int32_t story[kTokensMax];
  check(pair_generate_speculative(pair, prompt, prompt_count, &options, story, kTokensMax, &generation, &error),
        "pair_generate_speculative");
  printf("\n\n%zu tokens in %lld rounds, %.1f tokens/s, %lld of %lld drafts accepted\n", generation.token_count,
         (long long)generation.rounds, generation.speculative_tok_per_sec, (long long)generation.accepted_tokens,
         (long long)generation.drafted_tokens);

  int32_t by_hand[kTokensMax];
  const size_t count = write_by_hand(pair, prompt, prompt_count, by_hand);
  const int equal = count == generation.token_count && memcmp(story, by_hand, count * sizeof *story) == 0;
  printf("by hand: %s\n", equal ? "the same tokens" : "OTHER TOKENS");
  pair_close(pair);
  return equal ? 0 : 1;
}
