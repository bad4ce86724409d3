#pragma once

/// \file
/// Layer `ordering`: when freed memory is safe to reuse, and for whom.

#include <tenure/ordering/event_cache.hpp>
#include <tenure/ordering/pending_uses.hpp>
#include <tenure/ordering/stream_names.hpp>
#include <tenure/ordering/stream_order.hpp>
