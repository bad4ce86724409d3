#include "policies.hpp"

#include "../policies/with_policy.hpp"

namespace tenure::torch {

void check_policy(const policy_choice& choice) {
    policies::with_policy(choice, {}, []<template <class> class Policy>(const auto&) {});
}

} // namespace tenure::torch
