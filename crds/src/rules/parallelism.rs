//! Rules of parallelism, one file for each section of rules. Resources of nodes are not checked.

mod conditions;
mod degrees;
mod experts;
mod heads;
mod tensor_parallel;
mod unused;

use super::Rule;
use conditions::{NUM_RANKS, cel_is_one, feed_forward_width, given, given_default, heads};

/// Rules of all sections, in the order of the definition.
pub(super) const SECTIONS: [&[Rule]; 6] =
    [degrees::RULES, tensor_parallel::RULES, experts::RULES, degrees::OF_ROLES, unused::RULES, heads::RULES];
