#pragma once

/// \file
/// `prefetch`: asks the processor for a cache line that will be needed soon.
///
/// For loops over things that nobody has touched for long: asked for together, their lines arrive together, and the loop
/// waits once instead of once for each. A hint: any address will do, and where the compiler has no such call nothing
/// happens.

namespace tenure {

inline void prefetch([[maybe_unused]] const void* p) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(p);
#endif
}

} // namespace tenure
