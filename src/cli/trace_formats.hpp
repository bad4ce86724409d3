#pragma once

/// \file
/// The two file formats that `load_trace` reads, and the small tools they share.
///
/// Each reader takes the lines behind the header, gives every event to the builder and turns what the builder
/// says is wrong into an error with file and line.

#include "trace.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace tenure::cli {

/// The format of benchmarks/traces/README.md: a header that names the columns, then an event a line.
trace read_event_table(line_reader& lines, std::string_view header, trace_builder builder);

/// RMM's replay log: `Thread,Time,Action,Pointer,Size,Stream`.
bool is_rmm_header(std::string_view header);
trace read_rmm_log(line_reader& lines, trace_builder builder);

/// Effects: `fields` becomes the parts of `line` between commas, views into it.
void split_fields(std::string_view line, std::vector<std::string_view>& fields);

/// Returns: the number that the whole of `text` spells in `base`.
/// Throws: `input_error` that blames the line read last and calls the number `what`.
std::uint64_t parse_number(const line_reader& lines, std::string_view text, const char* what, int base = 10);

/// Returns: false at the end of the file. Blank lines may stand at the end of a file only.
bool next_record(line_reader& lines, std::string_view& line);

} // namespace tenure::cli
