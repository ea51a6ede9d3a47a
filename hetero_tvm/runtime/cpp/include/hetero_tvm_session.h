/* Sessions of a library that hetero_tvm exported, from C (C11) or C++: header only, over hetero_tvm.h beside it.
 *
 * A model whose inputs come back as outputs (a cache of keys and values, a recurrent state) is called step by step;
 * the session holds what comes back.
 *
 *   hetero_tvm_session* session = hetero_tvm_session_open(model);
 *   if (!session || hetero_tvm_session_run(session, &x, 1)) die(hetero_tvm_error());
 *   const hetero_tvm_array* y = hetero_tvm_session_output(session, 0);   // stays until the next run or close
 *   hetero_tvm_session_rewind(session, 1);                               // forget the last element
 *   hetero_tvm_session* other = hetero_tvm_session_fork(session);        // goes on from here by itself
 *   hetero_tvm_session_close(other);
 *   hetero_tvm_session_close(session);
 *   hetero_tvm_close(model);                                             // after its sessions
 *
 * Inputs are those of the model that are no states, in the model's order (hetero_tvm_session_input), and so are the
 * outputs.  States that the library keeps in place (docs/sessions.md) lie in buffers of the session, which a call
 * writes to where something is new; a fork copies what there is.  States begin as zeros, and empty where they grow.
 * A call that fails leaves them as they were.
 */
#ifndef HETERO_TVM_SESSION_H_
#define HETERO_TVM_SESSION_H_

#include "hetero_tvm.h"

#define HETERO_TVM_MAX_SYMBOLS 64
#define HETERO_TVM_MAX_DIMENSION 96

/* Dimensions as the manifest writes them: numbers, names, and sums of products of both. */
typedef struct {
  char text[HETERO_TVM_MAX_RANK][HETERO_TVM_MAX_DIMENSION];
} hetero_tvm_axes;

/* A state: the input and the output that it is, the axis along which it grows (-1: none), the elements that its
 * buffer has along it, and how many of them count.  `kept` is its place among the buffers of the step, or -1. */
typedef struct {
  int input, output, axis, kept;
  int64_t room, length;
  hetero_tvm_array buffer;
} hetero_tvm_state;

typedef struct hetero_tvm_session {
  hetero_tvm_model* model;
  TVMFFIObjectHandle step; /* the function that keeps states in place; NULL: there is none */
  hetero_tvm_axes *input, *output;
  hetero_tvm_state* state;
  int states, kept, sizes;
  char (*size)[HETERO_TVM_MAX_DIMENSION]; /* symbols that operands of their own tell */
  TVMFFIAny result;
  hetero_tvm_array* results; /* by number of the model's output */
} hetero_tvm_session;

typedef struct {
  int count;
  struct { char name[HETERO_TVM_MAX_DIMENSION]; int64_t value; } symbol[HETERO_TVM_MAX_SYMBOLS];
} hetero_tvm_sizes;

/* The manifest ------------------------------------------------------------------------------------------- */

/* Reads the dimensions of all specs of the array `key` of the signature. */
static inline hetero_tvm_axes* hetero_tvm_read_axes(const char* json, const char* key, int count) {
  hetero_tvm_axes* axes = (hetero_tvm_axes*)calloc((size_t)count + 1, sizeof *axes);
  const char* at = hetero_tvm_behind(hetero_tvm_behind(json, NULL, "\"signature\":{"), NULL, key);
  for (int n = 0; axes && at && n < count; ++n) {
    char name[HETERO_TVM_MAX_NAME];
    if (!(at = hetero_tvm_behind(at, NULL, "\"name\":\""))) break;
    at = hetero_tvm_copy(at, name, sizeof name);
    if (!(at = hetero_tvm_behind(at, NULL, "\"shape\":["))) break;
    for (int i = 0; *at && *at != ']' && i < HETERO_TVM_MAX_RANK; ++i) {
      if (*at == '"') {
        at = hetero_tvm_copy(at + 1, axes[n].text[i], HETERO_TVM_MAX_DIMENSION);
        if (*at) ++at;
      } else {
        const size_t length = strcspn(at, ",]");
        if (length < HETERO_TVM_MAX_DIMENSION) memcpy(axes[n].text[i], at, length);
        at += length;
      }
      if (*at == ',') ++at;
    }
  }
  return axes;
}

/* Number of the spec of this name; -1: none. */
static inline int hetero_tvm_named(const hetero_tvm_spec* specs, int count, const char* name) {
  for (int i = 0; i < count; ++i)
    if (strcmp(specs[i].name, name) == 0) return i;
  return -1;
}

static inline int64_t* hetero_tvm_symbol(hetero_tvm_sizes* sizes, const char* name) {
  for (int i = 0; i < sizes->count; ++i)
    if (strcmp(sizes->symbol[i].name, name) == 0) return &sizes->symbol[i].value;
  return NULL;
}

/* Whether a dimension is a name alone. */
static inline int hetero_tvm_is_name(const char* text) {
  return *text && !(*text >= '0' && *text <= '9') && *text != '-' && !strpbrk(text, " *");
}

/* Value of a dimension; -1: it names a symbol whose size is not known. */
static inline int64_t hetero_tvm_size(hetero_tvm_sizes* sizes, const char* text) {
  int64_t sum = 0, sign = 1;
  while (*text) {
    int64_t product = sign;
    sign = 1;
    if (*text == '-') {
      product = -product;
      ++text;
    }
    for (;;) { /* the factors of a term */
      char name[HETERO_TVM_MAX_DIMENSION];
      const size_t length = strcspn(text, " *");
      if (!length || length >= sizeof name) return -1;
      memcpy(name, text, length);
      name[length] = '\0';
      text += length;
      int64_t* known = *name >= '0' && *name <= '9' ? NULL : hetero_tvm_symbol(sizes, name);
      if (!known && !(*name >= '0' && *name <= '9')) return -1;
      if (__builtin_mul_overflow(product, known ? *known : strtoll(name, NULL, 10), &product)) return -1;
      if (*text != '*') break;
      ++text;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return -1;
    if (strncmp(text, " + ", 3) == 0 || strncmp(text, " - ", 3) == 0) {
      sign = text[1] == '-' ? -1 : 1;
      text += 3;
    } else if (*text) {
      return -1;
    }
  }
  return sum;
}

/* Opening ------------------------------------------------------------------------------------------------ */

static inline void hetero_tvm_session_close(hetero_tvm_session* session) {
  if (!session) return;
  hetero_tvm_drop(&session->result);
  if (session->step) TVMFFIObjectDecRef(session->step);
  for (int n = 0; session->state && n < session->states; ++n) hetero_tvm_free(&session->state[n].buffer);
  free(session->state);
  free(session->input);
  free(session->output);
  free(session->size);
  free(session->results);
  free(session);
}

/* Reads the step: room of each state that is kept in place, in the order of its operands, and the sizes. */
static inline int hetero_tvm_read_step(hetero_tvm_session* session, const char* json) {
  hetero_tvm_model* model = session->model;
  const char* at = hetero_tvm_behind(json, NULL, "\"step\":{\"room\":{");
  if (!at) return 0;
  while (*at == '"') {
    char name[HETERO_TVM_MAX_NAME];
    at = hetero_tvm_copy(at + 1, name, sizeof name);
    const int input = hetero_tvm_named(model->input, model->inputs, name);
    if (strncmp(at, "\":", 2) != 0) return hetero_tvm_fail(model->name, "its manifest cannot be read");
    char* end;
    const int64_t room = strtoll(at + 2, &end, 10);
    for (int n = 0; n < session->states; ++n)
      if (session->state[n].input == input) {
        session->state[n].room = room;
        session->state[n].kept = session->kept;
      }
    ++session->kept;
    at = *end == ',' ? end + 1 : end;
  }
  at = hetero_tvm_behind(at, NULL, "\"sizes\":[");
  session->size = (char(*)[HETERO_TVM_MAX_DIMENSION])calloc(HETERO_TVM_MAX_SYMBOLS, sizeof *session->size);
  if (!session->size) return hetero_tvm_fail(model->name, "out of memory");
  while (at && *at == '"' && session->sizes < HETERO_TVM_MAX_SYMBOLS) {
    at = hetero_tvm_copy(at + 1, session->size[session->sizes++], HETERO_TVM_MAX_DIMENSION);
    at += strncmp(at, "\",", 2) == 0 ? 2 : 1;
  }
  return hetero_tvm_member(model->machine, "step", 0, &session->step);
}

static inline int hetero_tvm_session_start(hetero_tvm_session* session) {
  hetero_tvm_model* model = session->model;
  const char* at = hetero_tvm_behind(model->manifest, NULL, "\"states\":{");
  session->input = hetero_tvm_read_axes(model->manifest, "\"inputs\":[", model->inputs);
  session->output = hetero_tvm_read_axes(model->manifest, "\"outputs\":[", model->outputs);
  session->state = (hetero_tvm_state*)calloc((size_t)model->inputs + 1, sizeof *session->state);
  session->results = (hetero_tvm_array*)calloc((size_t)model->outputs + 1, sizeof *session->results);
  if (!session->input || !session->output || !session->state || !session->results)
    return hetero_tvm_fail(model->name, "out of memory");
  while (at && *at == '"' && session->states < model->inputs) {
    char input[HETERO_TVM_MAX_NAME], output[HETERO_TVM_MAX_NAME];
    at = hetero_tvm_copy(at + 1, input, sizeof input);
    if (strncmp(at, "\":\"", 3) != 0) return hetero_tvm_fail(model->name, "its manifest cannot be read");
    at = hetero_tvm_copy(at + 3, output, sizeof output);
    at += strncmp(at, "\",", 2) == 0 ? 2 : 1;
    hetero_tvm_state* state = &session->state[session->states++];
    state->input = hetero_tvm_named(model->input, model->inputs, input);
    state->output = hetero_tvm_named(model->output, model->outputs, output);
    state->axis = state->kept = -1;
    if (state->input < 0 || state->output < 0) return hetero_tvm_fail(input, "its manifest cannot be read");
    for (int i = 0; i < model->input[state->input].rank; ++i)
      if (strcmp(session->input[state->input].text[i], session->output[state->output].text[i]) != 0) state->axis = i;
  }
  if (!session->states) return hetero_tvm_fail(model->name, "has no input that comes back as an output");
  return hetero_tvm_read_step(session, model->manifest);
}

/* Begin a session; any number of one model.  NULL: see hetero_tvm_error(). */
static inline hetero_tvm_session* hetero_tvm_session_open(hetero_tvm_model* model) {
  hetero_tvm_session* session = (hetero_tvm_session*)calloc(1, sizeof *session);
  if (!session) {
    hetero_tvm_fail(model->name, "out of memory");
    return NULL;
  }
  session->model = model;
  if (hetero_tvm_session_start(session) == 0) return session;
  hetero_tvm_session_close(session);
  return NULL;
}

/* State that is the model's input, or its output, of a number; NULL: none. */
static inline hetero_tvm_state* hetero_tvm_state_of(const hetero_tvm_session* session, int input, int output) {
  for (int n = 0; n < session->states; ++n)
    if (session->state[n].input == input || session->state[n].output == output) return &session->state[n];
  return NULL;
}

/* Number in the model of an input of the session, of an output where `output` is not 0; -1: none. */
static inline int hetero_tvm_session_place(const hetero_tvm_session* session, int index, int output) {
  const int count = output ? session->model->outputs : session->model->inputs;
  for (int n = 0; n < count; ++n)
    if (!hetero_tvm_state_of(session, output ? -2 : n, output ? n : -2) && index-- == 0) return n;
  return -1;
}

/* Spec of an input, or of an output, that is no state; NULL: there are no more. */
static inline const hetero_tvm_spec* hetero_tvm_session_input(const hetero_tvm_session* session, int index) {
  const int place = hetero_tvm_session_place(session, index, 0);
  return place < 0 ? NULL : &session->model->input[place];
}

static inline const hetero_tvm_spec* hetero_tvm_session_result(const hetero_tvm_session* session, int index) {
  const int place = hetero_tvm_session_place(session, index, 1);
  return place < 0 ? NULL : &session->model->output[place];
}

/* States ------------------------------------------------------------------------------------------------- */

/* Elements along the axis that grows, of the first state that does; 0: none does. */
static inline int64_t hetero_tvm_session_length(const hetero_tvm_session* session) {
  for (int n = 0; n < session->states; ++n)
    if (session->state[n].axis >= 0) return session->state[n].length;
  return 0;
}

/* Begin again. */
static inline void hetero_tvm_session_reset(hetero_tvm_session* session) {
  for (int n = 0; n < session->states; ++n) {
    hetero_tvm_free(&session->state[n].buffer);
    session->state[n].length = 0;
  }
}

/* Forget the last elements of what grows: all states must, and in place. */
static inline int hetero_tvm_session_rewind(hetero_tvm_session* session, int64_t elements) {
  for (int n = 0; n < session->states; ++n) {
    const hetero_tvm_state* state = &session->state[n];
    const char* name = session->model->input[state->input].name;
    if (state->axis < 0 || state->kept < 0) return hetero_tvm_fail(name, "cannot go back: keep a fork to return to");
    if (elements < 0 || elements > state->length) return hetero_tvm_fail(name, "has not so many elements");
  }
  for (int n = 0; n < session->states; ++n) session->state[n].length -= elements;
  return 0;
}

/* Copy what counts of a state to memory of its own. */
static inline int hetero_tvm_state_copy(const hetero_tvm_state* from, hetero_tvm_state* to) {
  const hetero_tvm_array* x = &from->buffer;
  *to = *from;
  to->buffer.data = NULL;
  if (!x->data) return 0;
  if (hetero_tvm_reserve(&to->buffer, x->dtype, x->rank, x->shape)) return 1;
  size_t outer = 1, row = hetero_tvm_itemsize(x->dtype), counts;
  const int grows = from->kept >= 0 && from->axis >= 0; /* others are as long as their memory */
  for (int i = 0; i < x->rank; ++i) *(grows && i < from->axis ? &outer : &row) *= (size_t)x->shape[i];
  counts = grows ? row / (size_t)x->shape[from->axis] * (size_t)from->length : row;
  for (size_t n = 0; n < outer; ++n) memcpy((char*)to->buffer.data + n * row, (const char*)x->data + n * row, counts);
  return 0;
}

/* A session of its own that goes on from here.  NULL: see hetero_tvm_error(). */
static inline hetero_tvm_session* hetero_tvm_session_fork(const hetero_tvm_session* session) {
  hetero_tvm_session* other = hetero_tvm_session_open(session->model);
  for (int n = 0; other && n < session->states; ++n)
    if (hetero_tvm_state_copy(&session->state[n], &other->state[n])) {
      hetero_tvm_session_close(other);
      other = NULL;
    }
  return other;
}

/* Calls -------------------------------------------------------------------------------------------------- */

/* Note the sizes of an array's dimensions that are names; where some are known already they must be these. */
static inline int hetero_tvm_note(hetero_tvm_sizes* sizes, const hetero_tvm_axes* axes, const int64_t* shape, int rank) {
  for (int i = 0; i < rank; ++i) {
    if (!hetero_tvm_is_name(axes->text[i]) || hetero_tvm_symbol(sizes, axes->text[i])) continue;
    if (sizes->count == HETERO_TVM_MAX_SYMBOLS) return hetero_tvm_fail(axes->text[i], "too many open dimensions");
    memcpy(sizes->symbol[sizes->count].name, axes->text[i], HETERO_TVM_MAX_DIMENSION);
    sizes->symbol[sizes->count++].value = shape[i];
  }
  return 0;
}

/* Refuse an array of which a dimension is not what the sizes say; `except` may be. */
static inline int hetero_tvm_fits(hetero_tvm_sizes* sizes, const hetero_tvm_spec* spec, const hetero_tvm_axes* axes,
                                  const int64_t* shape, int except) {
  for (int i = 0; i < spec->rank; ++i) {
    const int64_t wanted = hetero_tvm_size(sizes, axes->text[i]);
    if (wanted < 0 || wanted == shape[i] || i == except) continue;
    char text[256];
    snprintf(text, sizeof text, "dimension %d (%s) is %lld, and must be %lld", i, axes->text[i], (long long)shape[i],
             (long long)wanted);
    return hetero_tvm_fail(spec->name, text);
  }
  return 0;
}

/* Sizes of a call, and memory for states that have none yet. */
static inline int hetero_tvm_prepare(hetero_tvm_session* session, const hetero_tvm_array* inputs,
                                     hetero_tvm_sizes* sizes) {
  hetero_tvm_model* model = session->model;
  sizes->count = 0;
  for (int n = 0; n < session->states; ++n) { /* how much there is of what grows */
    hetero_tvm_state* state = &session->state[n];
    if (state->axis < 0) continue;
    hetero_tvm_axes one;
    memcpy(one.text[0], session->input[state->input].text[state->axis], HETERO_TVM_MAX_DIMENSION);
    if (hetero_tvm_note(sizes, &one, &state->length, 1)) return 1;
  }
  for (int n = 0, given = 0; n < model->inputs; ++n) {
    if (hetero_tvm_state_of(session, n, -2)) continue;
    const hetero_tvm_array* x = &inputs[given++];
    if (hetero_tvm_check_input(&model->input[n], x)) return 1;
    if (hetero_tvm_note(sizes, &session->input[n], x->shape, x->rank)) return 1;
  }
  for (int n = 0, given = 0; n < model->inputs; ++n) {
    if (hetero_tvm_state_of(session, n, -2)) continue;
    if (hetero_tvm_fits(sizes, &model->input[n], &session->input[n], inputs[given++].shape, -1)) return 1;
  }
  for (int n = 0; n < session->states; ++n) {
    hetero_tvm_state* state = &session->state[n];
    const hetero_tvm_spec* spec = &model->input[state->input];
    const hetero_tvm_axes* axes = &session->input[state->input];
    if (state->buffer.data) {
      if (hetero_tvm_fits(sizes, spec, axes, state->buffer.shape, state->axis)) return 1;
      continue;
    }
    int64_t shape[HETERO_TVM_MAX_RANK];
    for (int i = 0; i < spec->rank; ++i) shape[i] = hetero_tvm_size(sizes, axes->text[i]);
    if (state->axis >= 0) shape[state->axis] = state->kept < 0 ? 0 : state->room;
    /* What grows takes memory as it is written to. */
    if (state->axis >= 0 ? hetero_tvm_reserve(&state->buffer, spec->dtype, spec->rank, shape)
                         : hetero_tvm_alloc(&state->buffer, spec->dtype, spec->rank, shape))
      return 1;
  }
  for (int n = 0; n < session->states; ++n) {
    hetero_tvm_state* state = &session->state[n];
    if (state->axis < 0 || state->kept < 0) continue;
    const int64_t total = hetero_tvm_size(sizes, session->output[state->output].text[state->axis]);
    if (total < 0 || total > state->room)
      return hetero_tvm_fail(model->input[state->input].name, "the session is full: rewind or reset it, or build the "
                             "library for more");
  }
  return 0;
}

/* Arguments of a call in the order of the function; gives how many were made, -1 after a failure. */
static inline int hetero_tvm_arguments(hetero_tvm_session* session, const hetero_tvm_array* inputs,
                                       hetero_tvm_sizes* sizes, TVMFFIAny* args) {
  hetero_tvm_model* model = session->model;
  int made = 0, given = 0, status = 0;
  for (int n = 0; n < model->inputs && !status; ++n) {
    const hetero_tvm_state* state = hetero_tvm_state_of(session, n, -2);
    if (state && state->kept >= 0) continue;
    status = hetero_tvm_tensor(state ? &state->buffer : &inputs[given++], &args[made]);
    made += !status;
  }
  for (int kept = 0; kept < session->kept && !status; ++kept)
    for (int n = 0; n < session->states && !status; ++n) {
      if (session->state[n].kept != kept) continue;
      status = hetero_tvm_tensor(&session->state[n].buffer, &args[made]);
      made += !status;
    }
  for (int n = 0; n < session->sizes && !status; ++n) { /* their elements are not read */
    const int64_t* size = hetero_tvm_symbol(sizes, session->size[n]);
    static char nothing[64] __attribute__((aligned(64)));
    hetero_tvm_array told;
    memset(&told, 0, sizeof told);
    told.data = nothing;
    told.rank = 1;
    told.shape[0] = size ? *size : 0;
    snprintf(told.dtype, sizeof told.dtype, "uint8");
    status = hetero_tvm_tensor(&told, &args[made]);
    made += !status;
  }
  if (!status) return made;
  while (made) hetero_tvm_drop(&args[--made]);
  return -1;
}

/* An output of a call, among those that the function gives; borrowed from its result. */
static inline int hetero_tvm_pick(const hetero_tvm_model* model, TVMFFIAny result, int place, int output,
                                  hetero_tvm_array* out) {
  TVMFFIAny item = result, pick[2];
  int status = 0;
  if (result.type_index == kTVMFFIArray) {
    pick[0] = result;
    pick[1] = hetero_tvm_int(place);
    if (hetero_tvm_invoke("ffi.ArrayGetItem", pick, 2, &item)) return 1;
  }
  status = hetero_tvm_take(model, item, output, out);
  if (result.type_index == kTVMFFIArray) hetero_tvm_drop(&item); /* the array keeps it */
  return status;
}

/* Keep results: outputs of the caller as they lie, and copies of the states that are results. */
static inline int hetero_tvm_keep(hetero_tvm_session* session, TVMFFIAny result, hetero_tvm_sizes* sizes) {
  hetero_tvm_model* model = session->model;
  hetero_tvm_array* fresh = (hetero_tvm_array*)calloc((size_t)model->outputs + 1, sizeof *fresh);
  int place = 0, status = fresh ? 0 : hetero_tvm_fail(model->name, "out of memory");
  for (int n = 0; n < model->outputs && !status; ++n) {
    const hetero_tvm_state* state = hetero_tvm_state_of(session, -2, n);
    hetero_tvm_array found;
    if (state && state->kept >= 0) continue;
    status = hetero_tvm_pick(model, result, place++, n, &found);
    if (status || !state) {
      session->results[n] = found;
      continue;
    }
    status = hetero_tvm_reserve(&fresh[n], found.dtype, found.rank, found.shape);
    const size_t count = (size_t)hetero_tvm_count(found.shape, found.rank);
    if (!status) memcpy(fresh[n].data, found.data, count * hetero_tvm_itemsize(found.dtype));
  }
  for (int n = 0; n < session->states && fresh; ++n) {
    hetero_tvm_state* state = &session->state[n];
    if (state->kept < 0) {
      hetero_tvm_free(status ? &fresh[state->output] : &state->buffer);
      if (!status) state->buffer = fresh[state->output];
    }
    if (status || state->axis < 0) continue;
    state->length = hetero_tvm_size(sizes, session->output[state->output].text[state->axis]);
  }
  free(fresh);
  return status;
}

/* Run one step of a model that no other thread is in. */
static inline int hetero_tvm_session_run_alone(hetero_tvm_session* session, const hetero_tvm_array* inputs, int count) {
  hetero_tvm_model* model = session->model;
  hetero_tvm_sizes sizes;
  if (count != model->inputs - session->states) {
    char text[96];
    snprintf(text, sizeof text, "given %d inputs, a step takes %d", count, model->inputs - session->states);
    return hetero_tvm_fail(model->name, text);
  }
  if (hetero_tvm_prepare(session, inputs, &sizes)) return 1;
  TVMFFIAny result, *args = (TVMFFIAny*)calloc((size_t)(model->inputs + session->sizes) + 1, sizeof *args);
  memset(&result, 0, sizeof result);
  if (!args) return hetero_tvm_fail(model->name, "out of memory");
  int made = hetero_tvm_arguments(session, inputs, &sizes, args), status = made < 0;
  if (!status && TVMFFIFunctionCall(session->step ? session->step : model->main, args, made, &result) != 0)
    status = hetero_tvm_raised(model->name);
  while (made > 0) hetero_tvm_drop(&args[--made]);
  free(args);
  if (status) return status;
  hetero_tvm_drop(&session->result);
  session->result = result;
  return hetero_tvm_keep(session, result, &sizes);
}

/* Run one step on `count` inputs, those that are no states.  Outputs stay until the next run or close. */
static inline int hetero_tvm_session_run(hetero_tvm_session* session, const hetero_tvm_array* inputs, int count) {
  if (hetero_tvm_enter(session->model)) return 1;
  const int status = hetero_tvm_session_run_alone(session, inputs, count);
  hetero_tvm_leave(session->model);
  return status;
}

/* An output of the last step, among those that are no states; NULL: there is none, or nothing has run. */
static inline const hetero_tvm_array* hetero_tvm_session_output(const hetero_tvm_session* session, int index) {
  const int place = hetero_tvm_session_place(session, index, 1);
  return place >= 0 && session->results[place].data ? &session->results[place] : NULL;
}

#endif /* HETERO_TVM_SESSION_H_ */
