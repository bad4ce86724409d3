#pragma once

/// \file
/// The library's version, for the preprocessor and for code. Semantic versioning; before 1.0 a minor step may
/// change interfaces.

#define TENURE_VERSION_MAJOR 0
#define TENURE_VERSION_MINOR 1
#define TENURE_VERSION_PATCH 0
#define TENURE_VERSION_STRING "0.1.0"
