/* Outrider's C interface: speculative decoding of Gemma 4 with a pair of a target and its assistant.
 *
 * The text is always the target's own, as plain greedy decoding would write it; drafts only change how
 * fast it comes. docs/c-api.md is the guide, tests/integration/c_api_example.c a whole program.
 *
 * Every function that can fail returns an outrider_status and, unless `error` is NULL, says in *error
 * what was wrong. A NULL or nonsense argument is OUTRIDER_INVALID_ARGUMENT. After a failure no output
 * has been written, but where a function says so.
 *
 * Ownership: handles belong to the caller, who closes each once, in any order. All other pointers are
 * the caller's and are read or written during the call only.
 *
 * Threads: an outrider_pair may be used by many threads at once. An outrider_session may be used by
 * one thread at a time; different sessions do not disturb each other. Closing a handle while another
 * thread uses that same handle is an error that cannot be detected.
 */
/* Columns are set by hand, and Python reads each directive as one line. */
/* clang-format off */
#ifndef OUTRIDER_H_
#define OUTRIDER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a program built against an older header would no longer run. */
#define OUTRIDER_ABI_VERSION 1
/* OUTRIDER_ABI_VERSION of the library that is loaded. A program checks that it is its own. */
uint32_t outrider_abi_version(void);

typedef enum outrider_status {
  OUTRIDER_OK = 0,
  OUTRIDER_INVALID_ARGUMENT = 1, /* the call makes no sense */
  OUTRIDER_NOT_FOUND = 2,        /* a file or tensor that should exist does not; a session its workers forgot */
  OUTRIDER_MALFORMED = 3,        /* bytes of a file or of a peer that break their format */
  OUTRIDER_UNSUPPORTED = 4,      /* well formed, but not something this build can do */
  OUTRIDER_MISMATCH = 5,         /* target and assistant, or two nodes, do not fit each other */
  OUTRIDER_VERSION_MISMATCH = 6, /* the coordinator speaks another protocol version */
  OUTRIDER_TIMEOUT = 7,           /* a session that rested for more than an hour */
  OUTRIDER_PEER_GONE = 8,        /* the coordinator or the verifier is not there any more */
  OUTRIDER_OUT_OF_RANGE = 9,     /* beyond a limit: the context is full, a buffer is too small */
  OUTRIDER_UNAVAILABLE = 10,     /* not now: no verifier has joined, or all are busy */
  OUTRIDER_CANCELLED = 11,
  OUTRIDER_IO = 12               /* the operating system said no, memory included */
} outrider_status;

/* Short stable name of a status ("peer_gone"); "unknown" for another number. Never NULL; static. */
const char* outrider_status_name(outrider_status status);

/* Why a call failed: one line, NUL-terminated, cut where it is too long. "" after a call that did not. */
typedef struct outrider_error {
  char message[512];
} outrider_error;

typedef struct outrider_pair outrider_pair;       /* a target and perhaps its assistant */
typedef struct outrider_session outrider_session; /* one text of a pair, step by step */

/* ---- pairs ---- */

/* Loads a pair into this process and starts its threads.
 * target     directory of the backbone (Hugging Face layout, with tokenizer.json and
 *            generation_config.json).
 * assistant  directory of its drafter, or NULL for plain decoding only.
 * dtype      "f32", "bf16", "int8", "int4" or "q4"; NULL: a pack's own, else
 *            "bf16", or what suits the file and the memory (docs/performance.md).
 * threads    of the target's forward pass; 0: the fastest number, by measurement. */
outrider_status pair_open_local(const char* target, const char* assistant, const char* dtype, int32_t threads,
                                outrider_pair** pair, outrider_error* error);

/* Uses the pair of a running coordinator ("outrider coordinator") and the workers that joined it.
 * address  tcp://HOST:PORT; of several with commas between, the first that answers. Another machine wants keys at their
 *          default places (docs/security.md).
 * target   directory with the target's config.json, tokenizer.json and generation_config.json, and with its chat
 *          template (chat_template.jinja or tokenizer_config.json) if it has one.
 * OUTRIDER_PEER_GONE when nobody answers within 3 s. */
outrider_status pair_open_remote(const char* address, const char* target, outrider_pair** pair, outrider_error* error);

/* As pair_open_local(), of what `outrider run --model` takes.
 * model        the directory of a pair (pair.json, or backbone/ and assistant/); a Hugging Face directory, a .gguf file
 *              or a pack, with the assistant that belongs to it by its name beside it if there is one;
 *              ORG/NAME[@REVISION][:GGUF] on the Hugging Face hub, which is downloaded once (docs/models.md); NULL: the
 *              nano pair of Outrider's.
 * draft_model  what `outrider run --draft-model` takes, which drafts instead of the assistant: a whole model, a pair (a
 *              cascade) or a block or EAGLE-3 drafter for it (docs/drafters.md); NULL: the assistant drafts, if any.
 * dtype        also of a pack: the one that it was written with; also of the draft model. NULL: each has its own. */
outrider_status outrider_open_model(const char* model, const char* draft_model, const char* dtype, int32_t threads,
                                    outrider_pair** pair, outrider_error* error);

/* NULL is allowed. Sessions that are still open go on, and close the pair with the last of them. */
void pair_close(outrider_pair* pair);

/* ---- the text of a pair ---- */

/* The prompt of a chat that starts with `text` (UTF-8, `bytes` long, at most 64 MiB), as the target's
 * chat template writes it: up to where the model answers.
 * Writes at most `capacity` ids to `tokens` and their number to *count. Where they do not fit:
 * OUTRIDER_OUT_OF_RANGE, *count says how many there are, and `tokens`, which may be NULL when capacity
 * is 0, is not written. */
outrider_status outrider_encode_user_turn(const outrider_pair* pair, const char* text, size_t bytes, int32_t* tokens,
                                          size_t capacity, size_t* count, outrider_error* error);

/* The text of `count` tokens, without control tokens: UTF-8 and a NUL behind it. *bytes is its length
 * without the NUL. Where text and NUL do not fit `capacity`: as above. */
outrider_status outrider_decode_tokens(const outrider_pair* pair, const int32_t* tokens, size_t count, char* text,
                                       size_t capacity, size_t* bytes, outrider_error* error);

/* 1 if the model has nothing more to say after `token`, else 0 (also for a NULL pair). */
int outrider_is_stop_token(const outrider_pair* pair, int32_t token);

/* ---- one text, step by step ----
 *
 * One round: pair_draft_tokens, then pair_verify_tokens; or pair_decode_one. A stop token ends nothing
 * here: the caller looks for it.
 *
 * pair_prefill ends the text there was, whatever comes of it. A failure of the other three ends it too, but
 * for OUTRIDER_INVALID_ARGUMENT, after which all is as before. Steps after such an end fail the same way until
 * pair_prefill starts another text; those after a pair_prefill that made no sense are
 * OUTRIDER_INVALID_ARGUMENT. */

outrider_status pair_session_open(outrider_pair* pair, outrider_session** session, outrider_error* error);
/* NULL is allowed. */
void pair_session_close(outrider_session* session);

/* Starts a text with a prompt of `count` tokens, 1 at least. *first_token: the one that follows. Waits up to 30 s for a
 * verifier (OUTRIDER_UNAVAILABLE), and then until the prompt is computed: outrider_stop ends no step. */
outrider_status pair_prefill(outrider_session* session, const int32_t* tokens, size_t count, int32_t* first_token,
                             outrider_error* error);

/* The same with the prompt of a conversation, pictures and sounds included.
 * body  as for outrider_post() to "/tokenize": {"messages": [...]}, whose parts of type image_url and video_url have
 *   data: URLs, and those of type input_audio base64. */
outrider_status outrider_prefill_chat(outrider_session* session, const char* body, size_t bytes, int32_t* first_token,
                                      outrider_error* error);

/* The next token, by plain decoding. */
outrider_status pair_decode_one(outrider_session* session, int32_t* next_token, outrider_error* error);

#define OUTRIDER_DRAFT_LENGTH_MAX 32

/* Asks the assistant for the next tokens. Changes no text.
 * drafts    room for `count` ids, 1 to OUTRIDER_DRAFT_LENGTH_MAX.
 * *drafted  how many it gave. 0 is no failure, and then *error says so: there is no assistant (any
 *           more), it was late, or the context ends here. Decoding goes on without.
 * A second call before the next verify or decode gives the same candidates again. */
outrider_status pair_draft_tokens(outrider_session* session, size_t count, int32_t* drafts, size_t* drafted,
                                  outrider_error* error);

/* Runs the target over the last token and `count` drafts, 0 to OUTRIDER_DRAFT_LENGTH_MAX, in one pass.
 * Appends the first *accepted drafts, those that it would have chosen itself, and its own *next_token.
 * The drafts may be anybody's: wrong ones cost time. An id outside the vocabulary is
 * OUTRIDER_INVALID_ARGUMENT, as are more drafts than the context has room for. */
outrider_status pair_verify_tokens(outrider_session* session, const int32_t* drafts, size_t count, size_t* accepted,
                                   int32_t* next_token, outrider_error* error);

/* ---- one text, from prompt to end ---- */

/* Gets the new tokens as they come, and the text that they complete (UTF-8, not NUL-terminated, perhaps
 * empty; a character cut by the end of the answer comes with a last call without tokens). Both are valid
 * during the call. Runs on the thread that called pair_generate_speculative. Other than 0 stops. It may
 * call into this library, must not leave by an exception or longjmp, and should return within seconds:
 * what a coordinator sends meanwhile has to wait in a bounded queue. */
typedef int (*outrider_on_tokens)(void* user, const int32_t* tokens, size_t count, const char* text, size_t bytes);

typedef struct outrider_generate_options {
  size_t size;                  /* sizeof(outrider_generate_options): it may grow at the end */
  int64_t max_tokens;           /* of the answer, 1 at least */
  const int32_t* stop_tokens;   /* NULL: the model's own */
  size_t stop_token_count;
  outrider_on_tokens on_tokens; /* or NULL */
  void* user;                   /* for on_tokens */
  int32_t draft_length;         /* drafts per round, 0 (plain decoding) to OUTRIDER_DRAFT_LENGTH_MAX */
  int32_t ignore_stop_tokens;   /* other than 0: only max_tokens and the context end the answer */
} outrider_generate_options;

#define OUTRIDER_GENERATE_OPTIONS_INIT {sizeof(outrider_generate_options), 256, NULL, 0, NULL, NULL, 4, 0}

typedef enum outrider_finish {
  OUTRIDER_FINISH_STOP = 0,   /* the last token is a stop token */
  OUTRIDER_FINISH_LENGTH = 1, /* max_tokens, or the context is full */
  OUTRIDER_FINISH_CALLER = 2  /* on_tokens or outrider_stop ended it; of the metrics only token_count is known */
} outrider_finish;

/* What an answer took. The metrics are explained in the README. */
typedef struct outrider_generation {
  size_t size;               /* in: sizeof(outrider_generation): it may grow at the end */
  size_t token_count;
  int32_t finish;            /* outrider_finish */
  int32_t reserved;
  int64_t rounds;            /* forward passes of the target after the prompt's */
  int64_t drafted_tokens;
  int64_t accepted_tokens;
  double speculative_tok_per_sec;
  double draft_tokens_per_batch;
  double target_verify_ms;
  double assistant_draft_ms;
} outrider_generation;

#define OUTRIDER_GENERATION_INIT {sizeof(outrider_generation), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0}

/* Answers a prompt of `count` tokens, 1 at least.
 * options     NULL: those of OUTRIDER_GENERATE_OPTIONS_INIT.
 * tokens      gets the answer, stop token included; room for `capacity` ids, which must be max_tokens at
 *             least. NULL with capacity 0 where on_tokens is enough.
 * generation  or NULL. */
outrider_status pair_generate_speculative(outrider_pair* pair, const int32_t* prompt, size_t count,
                                          const outrider_generate_options* options, int32_t* tokens, size_t capacity,
                                          outrider_generation* generation, outrider_error* error);

/* Ends each pair_generate_speculative and outrider_post under way with this `user`, of any pair, as if its callback had
 * returned other than 0: also before the first callback, while the prompt is computed. A call that begins later is not
 * ended. For any thread. */
void outrider_stop(const void* user);

/* ---- whole requests: chats, sampling, tools, grammars, log-probabilities ---- */

/* Gets a reply: one JSON object, UTF-8, not NUL-terminated, valid during the call. Of a request with "stream": true
 * each event's; then other than 0 stops, and what comes within 8 MiB of events may wait for it. Runs on the thread that
 * called outrider_post; may call into this library, must not leave by an exception or longjmp. */
typedef int (*outrider_on_reply)(void* user, const char* json, size_t bytes);

/* What `outrider serve` answers to a POST, without HTTP: docs/http.md has the requests and replies.
 * path   "/v1/chat/completions", "/v1/completions", "/tokenize" or "/detokenize".
 * body   the request, a JSON object, at most 64 MiB. As over HTTP, what it does not say is as the checkpoint's makers
 *        advise (temperature 0 decodes greedily), and the draft length is "auto".
 * OUTRIDER_INVALID_ARGUMENT for a request that HTTP answers with 400, in the same words; OUTRIDER_OUT_OF_RANGE for one
 * that the context has no room for; OUTRIDER_NOT_FOUND for another path; OUTRIDER_PEER_GONE where a stream broke off
 * after its first event. A request that on_reply or outrider_stop ended is OUTRIDER_OK. */
outrider_status outrider_post(outrider_pair* pair, const char* path, const char* body, size_t bytes,
                              outrider_on_reply on_reply, void* user, outrider_error* error);

#ifdef __cplusplus
}
#endif

#endif /* OUTRIDER_H_ */
