#pragma once

/// \file
/// Catch2, version 2 or 3, whichever is installed.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
