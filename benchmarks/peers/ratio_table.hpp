#pragma once

/// \file
/// `ratio_table`: shows results as Google Benchmark does, remembers the medians, and prints at the end how ours
/// compare with the best peer's.

#include "contender.hpp"

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bench {

class ratio_table : public benchmark::ConsoleReporter {
  public:
    /// What is compared in one column: the benchmark `prefix + contender + suffix`.
    struct column {
        std::string title;
        std::string prefix;
        std::string suffix;
    };

    ratio_table() : ConsoleReporter(isatty(STDOUT_FILENO) != 0 ? OO_Color : OO_None) {}

    void ReportRuns(const std::vector<Run>& runs) override {
        ConsoleReporter::ReportRuns(runs);
        for (const Run& run : runs) {
            const bool median = run.run_type == Run::RT_Aggregate && run.aggregate_name == "median";
            if (run.error_occurred ||
                !(median || (run.run_type == Run::RT_Iteration && run.repetitions == 1)))
                continue;
            const auto pairs = run.counters.find("pairs");
            values_[run.run_name.function_name] =
                pairs == run.counters.end() ? run.GetAdjustedRealTime() : pairs->second.value / 1e6;
        }
    }

    /// Effects: prints one table, a line a contender. `more_is_better`: the values are rates.
    void print(const char* title, const contender_list& contenders, const std::vector<column>& columns,
               bool more_is_better) const {
        std::printf("\n%s\n%-18s", title, "");
        for (const column& c : columns) std::printf("%12s", c.title.c_str());
        std::printf("\n");
        std::vector<best> ours(columns.size());
        std::vector<best> peers(columns.size());
        for (const contender& s : contenders) {
            std::printf("%-18s", s.name.c_str());
            for (std::size_t i = 0; i < columns.size(); ++i) {
                const auto found = values_.find(columns[i].prefix + s.name + columns[i].suffix);
                if (found == values_.end()) {
                    std::printf("%12s", "-");
                    continue;
                }
                std::printf("%12.*f", more_is_better ? 2 : 1, found->second);
                if (s.whose == contender::side::ours) ours[i].offer(found->second, s.name, more_is_better);
                if (s.whose == contender::side::peer) peers[i].offer(found->second, s.name, more_is_better);
            }
            std::printf("\n");
        }
        print_ratios("ours / best peer", ours, peers);
    }

  private:
    struct best {
        std::optional<double> value;
        std::string name;
        void offer(double v, const std::string& whose, bool more_is_better) {
            if (value && (more_is_better ? v <= *value : v >= *value)) return;
            value = v;
            name = whose;
        }
    };

    static void print_ratios(const char* what, const std::vector<best>& ours,
                             const std::vector<best>& peers) {
        std::printf("%-18s", what);
        for (std::size_t i = 0; i < ours.size(); ++i) {
            if (ours[i].value && peers[i].value)
                std::printf("%12.3f", *ours[i].value / *peers[i].value);
            else
                std::printf("%12s", "-");
        }
        std::printf("\n");
        for (std::size_t i = 0; i < ours.size(); ++i)
            if (ours[i].value && peers[i].value)
                std::printf("  [%zu] %s against %s\n", i + 1, ours[i].name.c_str(), peers[i].name.c_str());
    }

    std::map<std::string, double> values_;
};

} // namespace bench
