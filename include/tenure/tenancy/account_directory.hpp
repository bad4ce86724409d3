#pragma once

/// \file
/// `account_directory`: all accounts of the process, by the number that stands in the words of their blocks.
///
/// Asked when an account is opened, and when a free has failed already; the hot path never comes here. Invariant: an account
/// is found from its opening until it is closed and its last block is freed; so is everything above it.
///
/// Cost: 8 bytes an account. Never destroyed. Thread-safety: thread-safe; its lock is taken after a ledger's.

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace tenure {

class account_ledger;

/// One account, as its ledger keeps it. All that changes is guarded by the ledger's mutex. Bytes unless the name says
/// otherwise.
struct account_state {
    account_ledger* ledger = nullptr;
    account_state* parent = nullptr; ///< null: the root
    std::string name;
    std::size_t max = no_limit;
    std::size_t charged = 0; ///< blocks, and stocks of all threads, of this account and of those below it
    std::size_t peak = 0;    ///< of `charged`
    std::int64_t blocks = 0; ///< live blocks of this account, less those that slots count
    std::uint32_t refused = 0;
    std::uint32_t id = 0;
    std::uint32_t children = 0;
    bool closed = false;

    /// Returns: whether this is `other` or lies below it.
    [[nodiscard]] bool is_within(const account_state& other) const noexcept {
        const account_state* a = this;
        while (a != nullptr && a != &other) a = a->parent;
        return a != nullptr;
    }

    /// Returns: the names from below the root, joined by '/'; the root's own name for the root.
    [[nodiscard]] short_text path() const noexcept {
        try {
            std::string text = name;
            for (const account_state* a = parent; a != nullptr && a->parent != nullptr; a = a->parent)
                text = a->name + '/' + text;
            return short_text(text);
        } catch (...) { // no host memory for it
            return short_text(name);
        }
    }
};

class account_directory {
  public:
    /// The largest number: 24 bits of a block's word.
    static constexpr std::uint32_t max_id = (1u << 24) - 1;

    static account_directory& instance() {
        static account_directory* const directory = new account_directory;
        return *directory;
    }

    /// Effects: gives the account a number. Throws: `std::bad_alloc`, also when all numbers are taken.
    void enter(account_state& a) {
        const std::lock_guard lock(mutex_);
        if (unused_.empty()) {
            if (accounts_.size() > max_id) throw std::bad_alloc();
            unused_.reserve(accounts_.size() + 1); // so that `leave` needs no memory
            accounts_.push_back(nullptr);
            unused_.push_back(static_cast<std::uint32_t>(accounts_.size() - 1));
        }
        a.id = unused_.back();
        unused_.pop_back();
        accounts_[a.id] = &a;
    }

    void leave(const account_state& a) noexcept {
        const std::lock_guard lock(mutex_);
        accounts_[a.id] = nullptr;
        unused_.push_back(a.id);
    }

    /// Effects: takes out an account of that ledger. Returns: null when there is none. Complexity: linear.
    account_state* leave_any(const account_ledger& ledger) noexcept {
        const std::lock_guard lock(mutex_);
        for (; sweep_ < accounts_.size(); ++sweep_) {
            account_state* const a = accounts_[sweep_];
            if (a == nullptr || a->ledger != &ledger) continue;
            accounts_[sweep_] = nullptr; // its number is in the words of blocks that are out: not used again
            return a;
        }
        sweep_ = 0;
        return nullptr;
    }

    /// Effects: f(account_state&) for the account of that number, if there is one, which stays during the call.
    template <class F>
    void with(std::uint64_t id, F&& f) const noexcept {
        const std::lock_guard lock(mutex_);
        if (id < accounts_.size() && accounts_[id] != nullptr) f(*accounts_[id]);
    }

  private:
    account_directory() = default;
    mutable std::mutex mutex_;
    std::vector<account_state*> accounts_{nullptr}; ///< number 0 is nobody's
    std::vector<std::uint32_t> unused_;
    std::size_t sweep_ = 0; ///< where `leave_any` goes on
};

} // namespace tenure
