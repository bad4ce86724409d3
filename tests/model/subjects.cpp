// The policies that this suite runs over.

#include "support/policy_subjects.hpp"
