//! References to variables, as the kubelet replaces them in commands and in values of variables.

use std::collections::BTreeMap;

/// Replaces each `$(NAME)` by the variable's value. References to unknown variables are unchanged, and `$$`
/// becomes `$`. Replaced values are not expanded again.
pub(super) fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let reference = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            after
        } else if let Some((name, after)) = reference {
            match variables.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            after
        } else {
            expanded.push('$');
            after
        };
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::expanded;

    #[test]
    fn references_are_replaced_once_and_a_doubled_dollar_is_none() {
        let variables =
            [("A", "1"), ("B", "$(A)$$")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (text, result) in [
            ("$(A)-$(B)", "1-$(A)$$"),
            ("$$(A) $$$(A) $$", "$(A) $1 $"),
            ("$(C) $(date +%s) $A ${A} $( $(A", "$(C) $(date +%s) $A ${A} $( $(A"),
            ("$(echo $(A))", "$(echo $(A))"),
            ("", ""),
        ] {
            assert_eq!(expanded(text, &variables.clone().into()), result, "{text}");
        }
    }
}
