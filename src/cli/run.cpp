#include "compare.hpp"
#include "errors.hpp"
#include "policies.hpp"
#include "trace.hpp"

#include <tenure/core/units.hpp>
#include <tenure/core/version.hpp>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

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
    app.add_flag("--quiet", options.quiet, "No table and no progress bar");
    app.footer(
        "Policies and their options:\n" + policies_help() +
        "\nExit status: 0 every replay ran to its end without a refused allocation, 3 some were refused, "
        "2 bad usage or input, 1 a policy broke a promise or --verify found a block overwritten.");
}

int fail(exit_code code, const char* message) {
    std::fprintf(stderr, "tenure: %s\n", message);
    return code;
}

} // namespace

int run(int argc, const char* const* argv) {
    // A reader that goes away must not keep the JSON file from being finished; print() sees the error.
    std::signal(SIGPIPE, SIG_IGN);

    CLI::App app("Compares GPU memory allocators on recorded traces.", "tenure");
    app.set_version_flag("--version", "tenure " TENURE_VERSION_STRING);
    app.require_subcommand(1);
    compare_options options;
    add_compare(*app.add_subcommand("compare", "Replay traces through policies, side by side"), options);
    try {
        app.parse(argc, argv);
        return compare(options);
    } catch (const CLI::Success& e) {
        return app.exit(e); // --help, --version
    } catch (const CLI::ParseError& e) {
        return fail(bad_usage, (std::string(e.what()) + " (see tenure --help)").c_str());
    } catch (const usage_error& e) {
        return fail(bad_usage, e.what());
    } catch (const input_error& e) {
        return fail(bad_usage, e.what());
    } catch (const std::exception& e) {
        return fail(internal_failure, e.what());
    }
}

} // namespace tenure::cli
