// What libmtmd and libllama of llama.cpp compute for pictures in a prompt, for bench/mtmd.py. bench/peer.sh --mtmd
// builds it.
//
// Usage: mtmd-driver --mmproj FILE --picture FILE... [--model FILE] [--prompt TEXT] [--threads N] [--flash 0|1]
//                    [--rows FILE] [--logits FILE] [--serve]
//
// Pictures are PPM files (P6, 8 bits a channel). Markers <__media__> in the prompt stand for them, in order; without
// --model the prompt is one marker for each, which only projectors without tokens around their rows allow.
// stdout gets a line of JSON: the chunks of the prompt ({"ids": [...]} or {"rows": N, "positions": N}), the width of
// rows and the size of the vocabulary. --rows writes the rows of all pictures (float32, native byte order), --logits
// those of the text after the last picture; both need --model. With --serve each line of stdin is answered by the
// seconds that the vision tower takes for all pictures.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "llama.h"
#include "mtmd.h"
#include "mtmd-helper.h"

namespace {

[[noreturn]] void fail(const std::string & message) {
    std::fprintf(stderr, "mtmd-driver: %s\n", message.c_str());
    std::exit(1);
}

void print_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

struct Options {
    std::map<std::string, std::string> values;
    std::vector<std::string> pictures;

    std::string get(const std::string & name, const std::string & fallback = "") const {
        const auto found = values.find(name);
        return found == values.end() ? fallback : found->second;
    }
};

Options read_options(int argc, char ** argv) {
    Options options;
    for (int index = 1; index < argc; index++) {
        const std::string name = argv[index];
        if (name == "--serve") {
            options.values[name] = "1";
            continue;
        }
        if (name.rfind("--", 0) != 0 || index + 1 == argc) {
            fail("not an option with a value: " + name);
        }
        const std::string value = argv[++index];
        if (name == "--picture") {
            options.pictures.push_back(value);
        } else {
            options.values[name] = value;
        }
    }
    return options;
}

mtmd_bitmap * read_ppm(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::string magic;
    uint32_t width = 0, height = 0, most = 0;
    file >> magic >> width >> height >> most;
    file.get();
    if (!file || magic != "P6" || most != 255) {
        fail(path + " is not a PPM file of 8 bits a channel");
    }
    std::vector<unsigned char> pixels(size_t(width) * height * 3);
    file.read(reinterpret_cast<char *>(pixels.data()), std::streamsize(pixels.size()));
    if (!file) {
        fail(path + " is cut off");
    }
    return mtmd_bitmap_init(width, height, pixels.data());
}

void write_floats(const std::string & path, const std::vector<float> & values) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(values.data()), std::streamsize(values.size() * sizeof(float)));
    if (!file) {
        fail("cannot write " + path);
    }
}

bool is_text(const mtmd_input_chunk * chunk) {
    return mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT;
}

std::vector<const mtmd_input_chunk *> list_chunks(const mtmd_input_chunks * chunks) {
    std::vector<const mtmd_input_chunk *> found;
    for (size_t index = 0; index < mtmd_input_chunks_size(chunks); index++) {
        found.push_back(mtmd_input_chunks_get(chunks, index));
    }
    return found;
}

std::string describe(const mtmd_input_chunk * chunk) {
    if (!is_text(chunk)) {
        return "{\"rows\": " + std::to_string(mtmd_input_chunk_get_n_tokens(chunk)) +
               ", \"positions\": " + std::to_string(mtmd_input_chunk_get_n_pos(chunk)) + "}";
    }
    size_t count = 0;
    const llama_token * ids = mtmd_input_chunk_get_tokens_text(chunk, &count);
    std::string found;
    for (size_t index = 0; index < count; index++) {
        found += (index ? ", " : "") + std::to_string(ids[index]);
    }
    return "{\"ids\": [" + found + "]}";
}

// The seconds for the rows of all pictures, which are appended to `rows` unless it is null.
double encode(mtmd_context * context, const std::vector<const mtmd_input_chunk *> & chunks, size_t width,
              std::vector<float> * rows) {
    double seconds = 0;
    for (const mtmd_input_chunk * chunk : chunks) {
        if (is_text(chunk)) {
            continue;
        }
        const auto began = std::chrono::steady_clock::now();
        if (mtmd_encode_chunk(context, chunk) != 0) {
            fail("mtmd_encode_chunk failed");
        }
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        if (rows) {
            const float * values = mtmd_get_output_embd(context);
            rows->insert(rows->end(), values, values + width * mtmd_input_chunk_get_n_tokens(chunk));
        }
    }
    return seconds;
}

// The logits of all positions of the last chunk, which must be text.
std::vector<float> compute_logits(mtmd_context * context, llama_model * model,
                                  const std::vector<const mtmd_input_chunk *> & chunks, int threads, bool flash,
                                  int vocab) {
    if (chunks.empty() || !is_text(chunks.back())) {
        fail("--logits: the prompt must end with text");
    }
    size_t tokens = 0;
    for (const mtmd_input_chunk * chunk : chunks) {
        tokens += mtmd_input_chunk_get_n_tokens(chunk);
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = uint32_t((tokens + 255) / 256 * 256);
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32; // as ours with kv="f32"
    params.swa_full = true;
    llama_context * text = llama_init_from_model(model, params);
    if (!text) {
        fail("llama_init_from_model failed");
    }
    llama_pos position = 0;
    for (size_t index = 0; index + 1 < chunks.size(); index++) {
        if (mtmd_helper_eval_chunk_single(context, text, chunks[index], position, 0, int32_t(params.n_batch), false,
                                          &position) != 0) {
            fail("mtmd_helper_eval_chunk_single failed");
        }
    }
    size_t count = 0;
    const llama_token * ids = mtmd_input_chunk_get_tokens_text(chunks.back(), &count);
    llama_batch batch = llama_batch_init(int32_t(count), 0, 1);
    batch.n_tokens = int32_t(count);
    for (size_t index = 0; index < count; index++) {
        batch.token[index] = ids[index];
        batch.pos[index] = position + llama_pos(index);
        batch.n_seq_id[index] = 1;
        batch.seq_id[index][0] = 0;
        batch.logits[index] = 1;
    }
    if (llama_decode(text, batch) != 0) {
        fail("llama_decode failed");
    }
    const float * values = llama_get_logits(text);
    std::vector<float> found(values, values + count * size_t(vocab));
    llama_batch_free(batch);
    llama_free(text);
    return found;
}

} // namespace

int main(int argc, char ** argv) {
    const Options options = read_options(argc, argv);
    const int threads = std::atoi(options.get("--threads", "1").c_str());
    const bool flash = options.get("--flash", "0") == "1";
    llama_log_set(print_errors, nullptr);
    mtmd_helper_log_set(print_errors, nullptr);
    llama_backend_init();

    llama_model * model = nullptr;
    if (!options.get("--model").empty()) {
        model = llama_model_load_from_file(options.get("--model").c_str(), llama_model_default_params());
        if (!model) {
            fail("llama.cpp cannot read " + options.get("--model"));
        }
    }
    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = false;
    params.print_timings = false;
    params.n_threads = threads;
    params.warmup = false;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    mtmd_context * context = mtmd_init_from_file(options.get("--mmproj").c_str(), model, params);
    if (!context) {
        fail("libmtmd cannot read " + options.get("--mmproj"));
    }

    std::vector<const mtmd_bitmap *> bitmaps;
    std::string prompt;
    for (const std::string & path : options.pictures) {
        bitmaps.push_back(read_ppm(path));
        prompt += mtmd_default_marker();
    }
    prompt = options.get("--prompt", prompt);
    const mtmd_input_text input = {prompt.c_str(), prompt.size(), model != nullptr, true};
    mtmd_input_chunks * list = mtmd_input_chunks_init();
    if (mtmd_tokenize(context, list, &input, bitmaps.data(), bitmaps.size()) != 0) {
        fail("mtmd_tokenize failed");
    }
    const std::vector<const mtmd_input_chunk *> chunks = list_chunks(list);
    const int vocab = model ? llama_vocab_n_tokens(llama_model_get_vocab(model)) : 0;
    const size_t width = model ? size_t(llama_model_n_embd_inp(model)) : 0;

    std::string layout;
    for (const mtmd_input_chunk * chunk : chunks) {
        layout += (layout.empty() ? "" : ", ") + describe(chunk);
    }
    std::printf("{\"chunks\": [%s], \"width\": %zu, \"vocab\": %d}\n", layout.c_str(), width, vocab);
    std::fflush(stdout);

    if (!model && !(options.get("--rows") + options.get("--logits")).empty()) {
        fail("--rows and --logits need --model");
    }
    if (!options.get("--rows").empty()) {
        std::vector<float> rows;
        encode(context, chunks, width, &rows);
        write_floats(options.get("--rows"), rows);
    }
    if (!options.get("--logits").empty()) {
        write_floats(options.get("--logits"), compute_logits(context, model, chunks, threads, flash, vocab));
    }
    for (std::string line; options.values.count("--serve") && std::getline(std::cin, line);) {
        std::printf("%.6f\n", encode(context, chunks, width, nullptr));
        std::fflush(stdout);
    }
    mtmd_input_chunks_free(list);
    mtmd_free(context);
    if (model) {
        llama_model_free(model);
    }
    return 0;
}
