#include "compare.hpp"

#include "comparison.hpp"
#include "errors.hpp"
#include "output_file.hpp"
#include "policies.hpp"
#include "progress.hpp"
#include "trace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

namespace tenure::cli {

namespace {

/// The devices that a replay can run on. `cuda::device` takes its place here once it can be replayed on.
void check_device(const std::string& name) {
    if (name == "sim") return;
    if (name == "cuda" || name.compare(0, 5, "cuda:") == 0) {
        throw usage_error("--device " + name + ": this program was built without CUDA; use --device sim");
    }
    throw usage_error("unknown device \"" + name + "\" (known: sim cuda cuda:N)");
}

/// Throws: `usage_error` when stdout cannot take the text. A reader that has gone away wants no more of it,
/// and is no error.
void print(const std::string& text) {
    errno = 0;
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
    if (errno != EPIPE) throw usage_error(std::string("cannot write to stdout: ") + std::strerror(errno));
}

struct input {
    trace program;
    peaks needed;
    std::optional<peers> peer;
};

std::vector<input> load_all(const std::vector<std::string>& paths) {
    std::vector<input> inputs;
    for (const std::string& path : paths) {
        input& in = inputs.emplace_back();
        in.program = load_trace(path);
        in.needed = peaks_of(in.program);
        in.peer = find_peers(path, in.program.name);
    }
    return inputs;
}

comparison replay_all(const std::vector<input>& inputs, const std::vector<named_policy>& policies,
                      const compare_options& options) {
    const replay_options how{.capacity = options.capacity, .limit = options.limit, .repeat = options.repeat};
    progress bar(inputs.size() * policies.size(), !options.quiet);
    comparison rows;
    for (const input& in : inputs) {
        for (const named_policy& p : policies) {
            bar.begin(in.program.name + " " + p.spec);
            comparison_row& row = rows.emplace_back();
            row.trace = in.program.name;
            row.policy = p.spec;
            row.device = options.device;
            if (options.limit != no_limit) row.limit = options.limit;
            row.events = in.program.events.size();
            row.needed = in.needed;
            row.peer = in.peer;
            try {
                row.result = p.run->replay(in.program, how);
            } catch (const replay_error& e) {
                throw replay_error("replaying " + row.trace + " through " + p.spec + ": " + e.what());
            }
        }
    }
    return rows;
}

} // namespace

exit_code compare(const compare_options& options) {
    check_device(options.device);
    const std::vector<named_policy> policies = parse_policies(options.policies);
    const std::vector<input> inputs = load_all(options.traces);
    const bool json_to_stdout = options.json == "-";
    std::optional<output_file> json;
    if (!options.json.empty() && !json_to_stdout) json.emplace(options.json);

    const comparison rows = replay_all(inputs, policies, options);

    if (json) json->commit(to_json(rows));
    if (json_to_stdout)
        print(to_json(rows));
    else if (!options.quiet)
        print(to_table(rows));
    const bool completed =
        std::all_of(rows.begin(), rows.end(), [](const comparison_row& r) { return r.result.completed(); });
    return completed ? all_completed : some_refused;
}

} // namespace tenure::cli
