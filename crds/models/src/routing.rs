//! Routing of tokens to experts, where it differs from a softmax with top-k choice.
//!
//! ```text
//! scores s     softmax or sigmoid, in fp32
//! choice       s, or s + bias; experts outside of the best groups are out
//! weights      s of the chosen, divided by their sum or not, times `scale`
//! ```

use serde_json::Value;

use super::fields::Fields;
use super::{ExpertGroups, Experts, ModelConfigError};

impl Experts {
    /// Reads the groups of DeepSeek's configurations, with the class's defaults.
    pub(super) fn read_groups(
        &mut self,
        fields: &Fields<'_>,
        defaults: [Option<usize>; 2],
        by_best: usize,
    ) -> Result<(), ModelConfigError> {
        let [count, chosen] =
            [("n_group", defaults[0]), ("topk_group", defaults[1])].map(|(field, default)| {
                match fields.get(field) {
                    None => default.ok_or_else(|| fields.missing(field)),
                    Some(_) => fields.size(field)?.ok_or_else(|| fields.invalid(field, "an integer above 0")),
                }
            });
        let (count, chosen) = (count?, chosen?);
        if !self.num_experts.is_multiple_of(count) || self.num_experts / count < by_best {
            let expected = format!(
                "a divisor of n_routed_experts {} that leaves groups of at least {by_best}",
                self.num_experts
            );
            return Err(fields.invalid("n_group", &expected));
        }
        if chosen > count || chosen * (self.num_experts / count) < self.num_experts_per_token {
            let expected = format!(
                "at most n_group {count}, with num_experts_per_tok {} experts or more in so many groups",
                self.num_experts_per_token
            );
            return Err(fields.invalid("topk_group", &expected));
        }
        self.routing.groups = Some(ExpertGroups { count, chosen, by_best });
        Ok(())
    }

    /// Reads the fields of experts that the configurations of DeepSeek-V2 and V3 share, with the class's
    /// defaults. `alias` is the class's second name for the number of experts.
    pub(super) fn read_deepseek(
        &mut self,
        fields: &Fields<'_>,
        alias: &'static str,
        [num_experts, num_shared, width, first_dense]: [usize; 4],
        per_token: Option<usize>,
        scale: f64,
    ) -> Result<(), ModelConfigError> {
        self.read_sizes(fields, &[alias, "n_routed_experts"], num_experts, per_token)?;
        self.intermediate_size = fields.size("moe_intermediate_size")?.unwrap_or(width);
        let num_shared = fields.size("n_shared_experts")?.unwrap_or(num_shared);
        self.shared_intermediate_size = Some(num_shared * self.intermediate_size);
        self.routing.scale = fields.number("routed_scaling_factor")?.unwrap_or(scale);
        let first_with = fields.count("first_k_dense_replace")?.unwrap_or(first_dense);
        for (layer_idx, has_experts) in self.layers.iter_mut().enumerate() {
            *has_experts = layer_idx >= first_with;
        }
        match fields.count("moe_layer_freq")? {
            None | Some(1) => Ok(()),
            Some(_) => Err(fields.unsupported("moe_layer_freq", "1")),
        }
    }

    /// Writes the fields that [`Self::read_deepseek`] and [`Self::read_groups`] read.
    pub(super) fn write_deepseek(&self, document: &mut Value) {
        let first_with = self.layers.iter().position(|has_experts| *has_experts);
        document["first_k_dense_replace"] = first_with.unwrap_or(self.layers.len()).into();
        document["n_routed_experts"] = self.num_experts.into();
        document["num_experts_per_tok"] = self.num_experts_per_token.into();
        document["moe_intermediate_size"] = self.intermediate_size.into();
        let shared = self.shared_intermediate_size.unwrap_or(0);
        document["n_shared_experts"] = (shared / self.intermediate_size.max(1)).into();
        document["routed_scaling_factor"] = self.routing.scale.into();
        document["n_group"] = self.routing.groups.map(|groups| groups.count).into();
        document["topk_group"] = self.routing.groups.map(|groups| groups.chosen).into();
        document["norm_topk_prob"] = self.normalises_weights.into();
    }
}
