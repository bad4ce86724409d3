/// \file
/// The program `tenure`.

#include "compare.hpp"

int main(int argc, char** argv) {
    return tenure::cli::run(argc, argv);
}
