#include "cli/terminal.hpp"
#include "cli/text_table.hpp"

#include "support/catch.hpp"
#include "widest.hpp"

#include <cstddef>
#include <string>
#include <vector>

using namespace tenure::cli;
using tenure::test::widest;

namespace {

text_table some_table() {
    text_table table({{"name", true}, {"a", false, 1}, {"bytes"}, {"c", false, 2}});
    table.add({"short", "1", "10", "100"});
    table.leave_a_gap();
    table.add({"a rather long name", "22", "2000", "3"});
    return table;
}

} // namespace

TEST_CASE("a table that has room is shown whole", "[cli][table]") {
    const auto whole = some_table().fit();
    CHECK(whole.text == "name                 a  bytes    c\n"
                        "short                1     10  100\n"
                        "\n"
                        "a rather long name  22   2000    3\n");
    CHECK(whole.left_out.empty());
    CHECK(some_table().fit(34).text == whole.text);
    CHECK(some_table().fit(34, 10).text == whole.text);
}

TEST_CASE("a table without room first shortens names, then leaves columns out", "[cli][table]") {
    const auto names = some_table().fit(28, 10);
    CHECK(names.left_out.empty());
    CHECK(names.text == "name           a  bytes    c\n"
                        "short          1     10  100\n"
                        "\n"
                        "a rather ...  22   2000    3\n");
    CHECK(some_table().fit(33).left_out == std::vector<std::string>{"c"}); // names are not shortened
    for (std::size_t room = 17; room < 40; ++room) { // all that a name of 10 and the bytes need, and more
        CAPTURE(room);
        const auto fitted = some_table().fit(room, 10);
        CHECK(widest(fitted.text) <= room);
        CHECK(fitted.text.find("2000") != std::string::npos);
        if (!fitted.left_out.empty()) CHECK(fitted.left_out.front() == "c");
    }
    CHECK(some_table().fit(17, 10).left_out == std::vector<std::string>{"c", "a"});
    CHECK(some_table().fit(1, 10).text == some_table().fit(17, 10).text); // the rest stays, whatever the room
    CHECK(text_table({{"nothing"}}).fit(3).text == "nothing\n");
}

TEST_CASE("texts are as wide as their characters, and are not cut inside one", "[cli][table]") {
    CHECK(width_of("caf\xc3\xa9") == 4);
    CHECK(shortened("caf\xc3\xa9", 4) == "caf\xc3\xa9");
    CHECK(shortened("\xc3\xa9t\xc3\xa9 1", 4) == "\xc3\xa9...");
    CHECK(shortened("abcd", 3) == "...");
}

TEST_CASE("a screen shows the first lines and says how many more there are", "[cli][table]") {
    const std::string text = "1\n2\n3\n4\n";
    CHECK(first_screen(text, {}) == text);
    CHECK(first_screen(text, {80, 5}) == text);
    CHECK(first_screen(text, {80, 4}) == "1\n2\n... and 2 lines more\n");
    CHECK(first_screen("12345\n2\n3\n4\n", {5, 5}) == "12345\n2\n3\n4\n");
    CHECK(first_screen("123456\n2\n3\n4\n", {5, 5}) ==
          "123456\n2\n... and 2 lines more\n"); // one that takes two rows
    CHECK(first_screen(text, {80, 1}) == "... and 4 lines more\n");
    CHECK(first_screen("", {80, 5}).empty());
}
