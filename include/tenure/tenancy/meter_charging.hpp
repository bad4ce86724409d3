#pragma once

/// \file
/// `meter`, first half of its definitions: charges, limits and the shape of the tree. Included by `meter.hpp` only.

#include <tenure/tenancy/meter.hpp>

namespace tenure {

// ---- construction ----

inline meter::meter(meter* parent, std::string_view name, const tenant_limits& limits) : name_(name) {
    state_.high = limits.high;
    state_.max = limits.max;
    state_.weight = std::max(limits.weight, 1u);
    if (limits.min > limits.max) throw not_admitted("\"" + name_ + "\": min is above max");
    if (parent == nullptr) {
        forest_ = std::make_shared<forest>();
        state_.min = limits.min;
        return;
    }
    forest_ = parent->forest_;
    {
        const locked lock(forest_->mutex);
        if (parent->depth() + 1 >= max_tenancy_depth)
            throw not_admitted("\"" + name_ + "\" would stand deeper than " +
                               std::to_string(max_tenancy_depth) + " levels");
        link(parent);
    }
    if (limits.min == 0 || admit_min(limits.min) == status::ok) return;
    {
        const locked lock(forest_->mutex);
        unlink();
    }
    throw not_admitted("\"" + name_ + "\": a level above has no room for min " + format_bytes(limits.min));
}

inline meter::~meter() {
    const locked lock(forest_->mutex);
    meter* const parent = parent_;
    if (parent != nullptr) {
        carry(parent, share(), 0);
        for (meter* m = parent; m != nullptr; m = m->parent_) m->state_.used -= state_.used;
        unlink();
    }
    while (meter* const child = first_child_) {
        child->unlink();
        if (parent == nullptr) continue;
        child->link(parent);
        carry(parent, 0, child->share());
        for (meter* m = parent; m != nullptr; m = m->parent_) m->state_.used += child->state_.used;
    }
    notify();
}

// ---- charging ----

inline meter::obstacle meter::obstacle_for(std::size_t bytes) noexcept {
    std::size_t added = bytes;
    for (meter* m = this; m != nullptr && added != 0; m = m->parent_) {
        if (m->state_.charged > m->state_.max || added > m->state_.max - m->state_.charged) return {m, added};
        const std::size_t before = m->share();
        added = std::max(m->state_.charged + added, m->state_.min) - before;
    }
    return {};
}

inline void meter::carry(meter* m, std::size_t before, std::size_t after) noexcept {
    for (; m != nullptr && before != after; m = m->parent_) {
        const std::size_t was = m->share();
        m->state_.charged = m->state_.charged - before + after;
        before = was;
        after = m->share();
    }
}

inline void meter::add(std::size_t bytes) noexcept {
    const std::size_t before = share();
    state_.own += bytes;
    state_.charged += bytes;
    for (meter* m = this; m != nullptr; m = m->parent_) m->state_.used += bytes;
    carry(parent_, before, share());
}

inline void meter::subtract(std::size_t bytes) noexcept {
    const std::size_t before = share();
    state_.own -= bytes;
    state_.charged -= bytes;
    for (meter* m = this; m != nullptr; m = m->parent_) m->state_.used -= bytes;
    carry(parent_, before, share());
}

inline result<meter::ticket, status> meter::reserve(std::size_t bytes, bool settled) noexcept {
    locked lock(forest_->mutex);
    // Taking nothing is always allowed, also above a `max` that was lowered.
    for (;;) {
        const obstacle o = obstacle_for(bytes);
        if (o.level == nullptr) break;
        if (!settled || !may_pass(o)) {
            refuse(o, bytes);
            return status::over_limit;
        }
        sleep(lock);
    }
    forget_refusal();
    ++state_.charges;
    add(bytes);
    for (meter* m = this; m != nullptr; m = m->parent_) m->state_.open += bytes;
    note_pressure();
    return ticket(*this, bytes);
}

inline void meter::refuse(const obstacle& o, std::size_t bytes) noexcept {
    ++state_.refused;
    meter& level = *o.level;
    ++level.state_.at_max;
    // What would be charged to the level if everybody had given all back, and only this were charged.
    std::size_t least = bytes;
    for (const meter *m = this, *from = nullptr;; from = m, m = m->parent_) {
        for (const meter* c = m->first_child_; c != nullptr; c = c->next_)
            if (c != from) least = saturating_add(least, c->guaranteed());
        if (m == &level || m->parent_ == nullptr) break; // the latter on a move, when it stands nowhere
        least = std::max(least, m->state_.min);
    }
    last_answer& answer = last_of_thread();
    answer.asked = id_;
    refusal& why = answer.why;
    why.level = level.id_;
    why.ancestor = &level != this;
    why.bytes = bytes;
    why.used = level.state_.charged;
    why.min = level.state_.min;
    why.max = level.state_.max;
    const std::size_t room = why.max - std::min(why.max, why.used);
    why.missing = why.used > why.max ? o.added + (why.used - why.max) : o.added - room;
    why.hopeless = least > why.max;
    why.path = short_text();
    try {
        std::string path;
        level.write_path(path);
        why.path = short_text(path);
    } catch (...) { // host memory; the name alone is better than nothing
        why.path = short_text(level.name_);
    }
}

inline std::optional<refusal> meter::last_refusal() const noexcept {
    const last_answer& answer = last_of_thread();
    if (answer.asked != id_) return std::nullopt;
    return answer.why;
}

inline void meter::forget_refusal() const noexcept {
    last_answer& answer = last_of_thread();
    if (answer.asked == id_) answer.asked = 0;
}

inline std::size_t meter::room() const noexcept {
    const locked lock(forest_->mutex);
    std::size_t room = no_limit;
    std::size_t guaranteed = 0; // of what comes from below, bytes that no level from here up sees
    for (const meter* m = this; m != nullptr; m = m->parent_) {
        const meter_reading& s = m->state_;
        room = std::min(room, saturating_add(guaranteed, s.max - std::min(s.max, s.charged)));
        guaranteed = saturating_add(guaranteed, s.min - std::min(s.min, s.charged));
    }
    return room;
}

inline std::size_t meter::limit() const noexcept {
    const locked lock(forest_->mutex);
    std::size_t least = no_limit;
    for (const meter* m = this; m != nullptr; m = m->parent_) least = std::min(least, m->state_.max);
    return least;
}

inline void meter::note_pressure() noexcept {
    for (meter* m = this; m != nullptr; m = m->parent_) {
        if (m->state_.charged <= m->state_.high) continue;
        ++m->state_.at_high;
        pressed_.store(true, std::memory_order_relaxed);
    }
}

inline void meter::settle(std::size_t bytes, std::size_t used) noexcept {
    const locked lock(forest_->mutex);
    subtract(bytes - used);
    for (meter* m = this; m != nullptr; m = m->parent_) {
        m->state_.open -= bytes;
        m->state_.peak =
            std::max(m->state_.peak, m->state_.charged - std::min(m->state_.charged, m->state_.open));
    }
    notify_of_ticket(); // what was only asked for has kept nobody out
}

inline void meter::refund(std::size_t bytes) noexcept {
    const locked lock(forest_->mutex);
    subtract(bytes);
    notify();
}

inline status meter::move_charge(meter& from, meter& to, std::size_t bytes, bool as_of_right) noexcept {
    if (from.forest_ != to.forest_) return status::invalid_value;
    locked lock(from.forest_->mutex);
    for (;;) {
        from.subtract(bytes);
        const obstacle o = as_of_right ? obstacle{} : to.obstacle_for(bytes);
        if (o.level == nullptr) break;
        const bool passes = may_pass(o);
        if (!passes) to.refuse(o, bytes);
        from.add(bytes);
        if (!passes) return status::over_limit;
        to.sleep(lock);
    }
    to.add(bytes);
    ++to.state_.charges;
    for (meter* m = &to; m != nullptr; m = m->parent_)
        m->state_.peak =
            std::max(m->state_.peak, m->state_.charged - std::min(m->state_.charged, m->state_.open));
    to.note_pressure();
    to.notify();
    return status::ok;
}

inline void meter::charge_as_of_right(std::size_t bytes) noexcept {
    const locked lock(forest_->mutex);
    add(bytes);
}

// ---- limits ----

inline bool meter::may_pass(const obstacle& o) noexcept {
    const meter_reading& s = o.level->state_;
    const std::size_t for_good = s.charged - std::min(s.charged, s.open);
    return s.open != 0 && for_good <= s.max && o.added <= s.max - for_good;
}

inline void meter::sleep(locked& lock) noexcept {
    ++forest_->sleepers;
    forest_->changed.wait(lock);
    --forest_->sleepers;
}

inline std::size_t meter::guaranteed() const noexcept {
    std::size_t below = 0;
    for (const meter* c = first_child_; c != nullptr; c = c->next_)
        below = saturating_add(below, c->guaranteed());
    return std::max(below, state_.min);
}

inline bool meter::grants_guarantee(std::size_t more) const noexcept {
    std::size_t sum = 0; // at most `max`, as long as `max` was not lowered since
    for (const meter* c = first_child_; c != nullptr; c = c->next_) {
        if (c->state_.min > no_limit - sum) return false;
        sum += c->state_.min;
    }
    return sum <= state_.max && more <= state_.max - sum;
}

inline std::size_t meter::set_max(std::size_t max) noexcept {
    const locked lock(forest_->mutex);
    state_.max = max;
    notify();
    return state_.charged > max ? state_.charged - max : 0;
}

inline status meter::set_min(std::size_t min) noexcept {
    locked lock(forest_->mutex);
    last_of_thread().asked = 0; // a refusal of guarantees is no matter of room
    std::size_t before = 0;
    std::size_t after = 0;
    for (;;) {
        if (min > state_.max) return status::over_limit;
        before = share();
        after = std::max(state_.charged, min);
        if (parent_ != nullptr && min > state_.min && !parent_->grants_guarantee(min - state_.min))
            return status::over_limit;
        if (parent_ == nullptr || after <= before) break;
        const obstacle o = parent_->obstacle_for(after - before);
        if (o.level == nullptr) break;
        if (!may_pass(o)) {
            refuse(o, after - before);
            return status::over_limit;
        }
        sleep(lock);
    }
    state_.min = min;
    carry(parent_, before, after);
    notify();
    return status::ok;
}

inline std::size_t meter::set_high(std::size_t high) noexcept {
    const locked lock(forest_->mutex);
    state_.high = high;
    return state_.charged > high ? state_.charged - high : 0;
}

inline void meter::set_weight(unsigned weight) noexcept {
    const locked lock(forest_->mutex);
    state_.weight = std::max(weight, 1u);
}

// ---- the tree ----

inline status meter::set_parent(meter& parent) noexcept {
    if (parent.forest_ != forest_) return status::invalid_value;
    locked lock(forest_->mutex);
    const auto leave = [this] {
        carry(parent_, share(), 0);
        for (meter* m = parent_; m != nullptr; m = m->parent_) {
            m->state_.used -= state_.used;
            m->state_.open -= state_.open;
        }
        unlink();
    };
    const auto enter = [this](meter* to) {
        link(to);
        carry(to, 0, share());
        for (meter* m = to; m != nullptr; m = m->parent_) {
            m->state_.used += state_.used;
            m->state_.open += state_.open;
        }
    };
    for (;;) {
        if (&parent == this || parent.below(*this) || parent.depth() + 1 + height() > max_tenancy_depth)
            return status::invalid_value;
        meter* const old = parent_;
        if (old != nullptr) leave();
        if (!parent.grants_guarantee(state_.min)) {
            if (old != nullptr) enter(old);
            return status::over_limit;
        }
        const obstacle o = parent.obstacle_for(share());
        if (o.level == nullptr) break;
        const bool passes = may_pass(o);
        if (!passes) refuse(o, share());
        if (old != nullptr) enter(old);
        if (!passes) return status::over_limit;
        sleep(lock);
    }
    enter(&parent);
    for (meter* m = &parent; m != nullptr; m = m->parent_)
        m->state_.peak =
            std::max(m->state_.peak, m->state_.charged - std::min(m->state_.charged, m->state_.open));
    notify();
    return status::ok;
}

inline void meter::link(meter* parent) noexcept {
    parent_ = parent;
    previous_ = parent->last_child_;
    (previous_ == nullptr ? parent->first_child_ : previous_->next_) = this;
    parent->last_child_ = this;
}

inline void meter::unlink() noexcept {
    (previous_ == nullptr ? parent_->first_child_ : previous_->next_) = next_;
    (next_ == nullptr ? parent_->last_child_ : next_->previous_) = previous_;
    parent_ = next_ = previous_ = nullptr;
}

inline std::size_t meter::depth() const noexcept {
    std::size_t n = 0;
    for (const meter* m = parent_; m != nullptr; m = m->parent_) ++n;
    return n;
}

inline std::size_t meter::height() const noexcept {
    std::size_t most = 0;
    for (const meter* c = first_child_; c != nullptr; c = c->next_) most = std::max(most, c->height());
    return most + 1;
}

inline bool meter::below(const meter& other) const noexcept {
    for (const meter* m = parent_; m != nullptr; m = m->parent_)
        if (m == &other) return true;
    return false;
}

inline meter& meter::level_of(std::uint64_t id) noexcept {
    meter* m = this;
    while (m->id_ != id && m->parent_ != nullptr) m = m->parent_;
    return *m;
}

inline void meter::write_path(std::string& out) const {
    if (parent_ != nullptr) {
        parent_->write_path(out);
        out += '/';
    }
    out += name_;
}

inline std::string meter::path() const {
    const locked lock(forest_->mutex);
    std::string path;
    write_path(path);
    return path;
}

inline meter_reading meter::read() const noexcept {
    const locked lock(forest_->mutex);
    return state_;
}

inline std::vector<tenant_picture> meter::picture() const {
    const locked lock(forest_->mutex);
    std::vector<tenant_picture> all;
    const std::size_t top = depth();
    const_cast<meter*>(this)->for_each_below([&](const meter& m) {
        std::string path;
        m.write_path(path);
        all.push_back({m.id_, m.parent_ == nullptr ? 0 : m.parent_->id_, m.depth() - top, m.name_,
                       std::move(path), m.holder_ != nullptr, m.state_});
    });
    return all;
}

inline void meter::count_failure(failure_cause cause) noexcept {
    const locked lock(forest_->mutex);
    ++state_.failures[static_cast<std::size_t>(cause)];
}

inline void meter::count_scrubbed(std::size_t bytes) noexcept {
    const locked lock(forest_->mutex);
    state_.scrubbed += bytes;
}

} // namespace tenure
