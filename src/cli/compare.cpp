#include "compare.hpp"

#include "advice.hpp"
#include "comparison.hpp"
#include "comparison_page.hpp"
#include "device_choice.hpp"
#include "errors.hpp"
#include "output_file.hpp"
#include "policies.hpp"
#include "print.hpp"
#include "progress.hpp"
#include "terminal.hpp"
#include "trace.hpp"

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include <unistd.h>

namespace tenure::cli {

namespace {

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
                      const compare_options& options, gpu_device* gpu) {
    const replay_options how{.gpu = gpu,
                             .verify = options.verify,
                             .capacity = options.capacity,
                             .limit = options.limit,
                             .repeat = options.repeat,
                             .footprint = !options.report.empty()};
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
            row.duration_us = in.program.events.back().t_us - in.program.events.front().t_us;
            row.needed = in.needed;
            row.peer = in.peer;
            try {
                row.result = p.run->replay(in.program, how);
            } catch (const replay_error& e) {
                throw replay_error("replaying " + row.trace + " through " + p.spec + ": " + e.what());
            } catch (const device_failure& e) {
                throw device_failure("replaying " + row.trace + " through " + p.spec + ": " + e.what());
            } catch (const driver_error& e) { // the device cannot do what the policy stands on
                throw usage_error(p.spec + " on " + options.device + ": " + e.what());
            }
        }
    }
    return rows;
}

void check_that_it_fits(const std::vector<input>& inputs, const compare_options& options, gpu_device& gpu) {
    const std::size_t free = free_bytes(gpu);
    for (const input& in : inputs) {
        const std::uint64_t needed = most_needed(in.program, in.needed, options.limit);
        if (needed <= free) continue;
        throw usage_error(in.program.name + " needs " + format_bytes(needed) + " at its peak; " +
                          options.device + " has " + format_bytes(free) + " free");
    }
}

/// Returns: whether all that was verified was right. Effects: what was not is told on stderr.
bool tell_mismatches(const comparison& rows) {
    bool good = true;
    for (const comparison_row& r : rows) {
        if (!r.result.verified || r.result.verified->good()) continue;
        good = false;
        const verification& v = *r.result.verified;
        const std::string who = "tenure: " + r.trace + " through " + r.policy + ": ";
        std::fprintf(stderr, "%s%zu%s of %llu checks found a block overwritten\n", who.c_str(),
                     v.mismatches.size(), v.more ? " or more" : "",
                     static_cast<unsigned long long>(v.checks));
        for (const mismatch& m : v.mismatches) std::fprintf(stderr, "%s%s\n", who.c_str(), m.text().c_str());
    }
    return good;
}

} // namespace

exit_code compare(const compare_options& options) {
    const device_choice choice = parse_device(options.device);
    if (choice.kind != device_kind::cuda && options.verify)
        throw usage_error("--verify needs --device cuda (the simulated device checks every replay)");
    if (choice.kind != device_kind::cuda && options.costs)
        throw usage_error(
            "--costs needs --device cuda (the simulated device has no other times than modelled ones)");
    if (choice.kind == device_kind::cuda && options.capacity != simulated_capacity)
        throw usage_error("--capacity is for the simulated device; on a GPU use --limit");
    const std::vector<named_policy> policies = parse_policies(options.policies);
    const std::vector<input> inputs = load_all(options.traces);
    const std::shared_ptr<gpu_device> gpu = open_gpu(choice);
    if (gpu) check_that_it_fits(inputs, options, *gpu);
    const bool json_to_stdout = options.json == "-";
    const bool page_to_stdout = options.report == "-";
    if (json_to_stdout && page_to_stdout) throw usage_error("--json - and --report - both want stdout");
    std::optional<output_file> json;
    if (!options.json.empty() && !json_to_stdout) json.emplace(options.json);
    std::optional<output_file> page;
    if (!options.report.empty() && !page_to_stdout) page.emplace(options.report);

    const comparison rows = replay_all(inputs, policies, options, gpu.get());

    const std::string device = gpu ? description(*gpu) : std::string();
    const bool good = tell_mismatches(rows);
    // A replay may have taken hours: nothing that cannot be written keeps the rest from being told.
    std::optional<usage_error> unwritten;
    const auto attempt = [&unwritten](const auto& write) {
        try {
            write();
        } catch (const usage_error& e) {
            if (unwritten) std::fprintf(stderr, "tenure: %s\n", unwritten->what());
            unwritten = e;
        }
    };
    if (json) attempt([&] { json->commit(to_json(rows)); });
    if (page) attempt([&] { page->commit(to_page(rows, device)); });
    attempt([&] {
        if (json_to_stdout)
            (void)print(to_json(rows));
        else if (page_to_stdout)
            (void)print(to_page(rows, device));
        else if (!options.quiet) {
            const std::size_t room = size_of_terminal(STDOUT_FILENO).columns;
            (void)print((gpu ? device + "\n\n" : std::string()) + to_table(rows, room) +
                        (options.costs ? "\n" + to_cost_table(rows, room) : std::string()) + "\n" +
                        to_answer(rows));
        }
    });
    if (!good && unwritten) std::fprintf(stderr, "tenure: %s\n", unwritten->what());
    if (!good) return internal_failure;
    if (unwritten) throw *unwritten;
    const bool completed =
        std::all_of(rows.begin(), rows.end(), [](const comparison_row& r) { return r.result.completed(); });
    return completed ? all_completed : some_refused;
}

} // namespace tenure::cli
