#include "compare.hpp"
#include "errors.hpp"
#include "launch.hpp"
#include "policies.hpp"
#include "report.hpp"
#include "top.hpp"
#include "trace.hpp"

#include <tenure/core/units.hpp>
#include <tenure/core/version.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace tenure::cli {

namespace {

/// Makes an option take a size in bytes.
CLI::Option* add_bytes(CLI::App& app, const std::string& name, std::size_t& bytes, const std::string& help) {
    return app
        .add_option_function<std::string>(
            name,
            [name, &bytes](const std::string& text) {
                try {
                    bytes = parse_bytes(text);
                } catch (const invalid_byte_size& e) {
                    throw CLI::ValidationError(name, e.what());
                }
            },
            help)
        ->type_name("BYTES");
}

void add_compare(CLI::App& app, compare_options& options) {
    app.add_option("TRACE", options.traces, "Traces: event tables or RMM logs, plain or gzip-compressed")
        ->required();
    app.add_option("--policy", options.policies,
                   "SPEC[,SPEC...] or all; SPEC is NAME[:option=value[:option=value...]]")
        ->type_name("SPECS")
        ->capture_default_str();
    app.add_option("--device", options.device, "sim, or cuda[:N]")
        ->type_name("DEVICE")
        ->capture_default_str();
    add_bytes(app, "--capacity", options.capacity, "Memory of the simulated device (default 141GiB)");
    add_bytes(app, "--limit", options.limit, "Run inside an arena with this hard limit (default: no arena)");
    app.add_option("--repeat", options.repeat, "Timed passes; their median counts")
        ->type_name("N")
        ->check(CLI::Range(1u, 10000u))
        ->capture_default_str();
    app.add_flag("--verify", options.verify,
                 "On a GPU: one more pass in which every block is filled, and checked before its free");
    app.add_flag("--costs", options.costs, "On a GPU: a table of driver calls, measured and modelled");
    app.add_option("--json", options.json, "Write the results as JSON; with - to stdout, and no table")
        ->type_name("FILE");
    app.add_option(
           "--report", options.report,
           "Write a page of HTML: timelines, maps of memory, the table; with - to stdout, and no table")
        ->type_name("FILE");
    app.add_flag("--quiet", options.quiet, "No table and no progress bar");
    app.footer(
        "Policies and their options:\n" + policies_help() +
        "\nExit status: 0 every replay ran to its end without a refused allocation, 3 some were refused, "
        "2 bad usage or input, 1 a policy broke a promise or --verify found a block overwritten, "
        "4 the GPU or its driver failed.");
}

void add_top(CLI::App& app, top_options& options) {
    app.add_option("PID", options.pid, "The process (default: all that publish)")->check(CLI::PositiveNumber);
    app.add_flag("--once", options.once, "Show it once and end");
    app.add_flag("--json", options.json, "A line of JSON for each process and time instead of a table");
    app.add_option("--interval", options.interval, "Time between two looks")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.01, 3600.0))
        ->capture_default_str();
    app.add_option("--dir", options.folder,
                   "Where the pages are (default: TENURE_PUBLISH_DIR, else /dev/shm)")
        ->type_name("FOLDER");
    app.footer(
        "A process publishes its arenas while TENURE_PUBLISH=1 is in its environment.\n"
        "USED is held from the device, LIVE in blocks of the program. A record of a run for tenure report:\n"
        "  tenure top PID --json --interval 0.1 > run.jsonl\n"
        "Exit status: 0 shown, or recorded until the process or the reader ended; 2 nothing to show, or\n"
        "the output cannot be written.");
}

void add_report(CLI::App& app, report_options& options) {
    app.add_option("RUN", options.run, "A trace, or the output of tenure top PID --json")->required();
    app.add_option("-o,--output", options.output, "The page of HTML; - for stdout")
        ->type_name("FILE")
        ->capture_default_str();
    app.footer("Exit status: 0 the page is written, 2 the run cannot be read or the page not be written.");
}

void add_run(CLI::App& app, launch_options& options) {
    app.add_option("--limit", options.limit, "What the program may hold on each GPU (default: no limit)")
        ->type_name("BYTES");
    app.add_option(
           "--policy", options.policy,
           "NAME[:option=value,...], how its memory is pooled (default: best_fit); none: only the limit")
        ->type_name("SPEC");
    app.add_flag("--publish", options.publish, "Show it to tenure top");
    app.add_flag("--summary", options.summary, "At its end, what it held, on stderr");
    app.add_flag("--force", options.force, "Start it although its file says that nothing would be limited");
    app.prefix_command();
    app.footer("Serves the program's cudaMalloc, cudaFree and their stream-ordered kin from one arena, by "
               "LD_PRELOAD. "
               "Managed and pitched memory, arrays and other pools stay the runtime's and count. Out of "
               "reach: the driver's "
               "interface (cuMemAlloc), and libraries that carry a runtime of their own.\nExit status: the "
               "program's; "
               "2 if it cannot be started.");
}

int fail(exit_code code, const char* message) {
    std::fprintf(stderr, "tenure: %s\n", message);
    return code;
}

} // namespace

int run(int argc, const char* const* argv) {
    // A reader that goes away must not keep the JSON file from being finished; print() sees the error.
    std::signal(SIGPIPE, SIG_IGN);

    CLI::App app("GPU memory: compares allocators on recorded traces, limits programs, shows arenas.",
                 "tenure");
    app.set_version_flag("--version", "tenure " TENURE_VERSION_STRING);
    app.require_subcommand(1);
    compare_options options;
    CLI::App* const compare_command =
        app.add_subcommand("compare", "Replay traces through policies, side by side");
    add_compare(*compare_command, options);
    top_options top_of;
    CLI::App* const top_command = app.add_subcommand("top", "Show the arenas of running processes");
    add_top(*top_command, top_of);
    report_options report_on;
    CLI::App* const report_command = app.add_subcommand("report", "Draw a recorded run as a page of HTML");
    add_report(*report_command, report_on);
    launch_options started;
    CLI::App* const run_command =
        app.add_subcommand("run", "Start a program whose CUDA memory is limited and pooled");
    add_run(*run_command, started);
    try {
        // What is behind "--" is the program's, and nothing in it an option of ours.
        const char* const* const end = argv + argc;
        const bool runs = argc > 1 && std::string_view(argv[1]) == "run";
        const char* const* const split = runs ? std::find(argv, end, std::string_view("--")) : end;
        app.parse(static_cast<int>(split - argv), argv);
        if (run_command->parsed()) {
            started.command = run_command->remaining();
            // Behind the program's name it is the program's, too.
            if (split != end)
                started.command.insert(started.command.end(), started.command.empty() ? split + 1 : split,
                                       end);
            launch(started);
        }
        if (top_command->parsed()) return top(top_of);
        if (report_command->parsed()) return report(report_on);
        return compare(options);
    } catch (const CLI::Success& e) {
        return app.exit(e); // --help, --version
    } catch (const CLI::ParseError& e) {
        return fail(bad_usage, (std::string(e.what()) + " (see tenure --help)").c_str());
    } catch (const usage_error& e) {
        return fail(bad_usage, e.what());
    } catch (const std::invalid_argument& e) { // a size or a policy that is none
        return fail(bad_usage, e.what());
    } catch (const input_error& e) {
        return fail(bad_usage, e.what());
    } catch (const device_failure& e) {
        return fail(gpu_failed, e.what());
    } catch (const driver_error& e) {
        return fail(gpu_failed, e.what());
    } catch (const std::exception& e) {
        return fail(internal_failure, e.what());
    }
}

} // namespace tenure::cli
