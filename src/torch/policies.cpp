#include "policies_make.hpp"

namespace tenure::torch {

const char* policy_names() noexcept {
    return policies::policy_names;
}

void check_policy(const policy_choice& choice) {
    check_policy_options(choice);
}

} // namespace tenure::torch
