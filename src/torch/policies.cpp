#include "policies_make.hpp"

namespace tenure::torch {

void check_policy(const policy_choice& choice) {
    check_policy_options(choice);
}

} // namespace tenure::torch
