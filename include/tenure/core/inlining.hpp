#pragma once

/// \file
/// `TENURE_ALWAYS_INLINE`, `TENURE_NOINLINE`: for the few functions where the compiler's judgement is known to cost more
/// than the work they do. Written where a declaration has its specifiers.

#if defined(__GNUC__)
#define TENURE_ALWAYS_INLINE [[gnu::always_inline]] inline
#define TENURE_NOINLINE [[gnu::noinline]]
#else
#define TENURE_ALWAYS_INLINE inline
#define TENURE_NOINLINE
#endif
