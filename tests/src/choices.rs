//! The names that a manifest can choose from, read from the field reference of the documentation.

use crate::workspace_root;

/// Lists the choices of `field`, such as `spec.algorithm.kind`, in the order of the field reference. A test
/// of the API checks that the reference agrees with the types.
///
/// # Panics
/// When the field reference cannot be read, or does not list at least two choices of the field.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn choices(field: &str) -> Vec<String> {
    let path = workspace_root().join("docs/reference.md");
    let reference = std::fs::read_to_string(path).expect("the field reference");
    let row = reference.lines().find(|line| line.starts_with(&format!("| `{field}` |")));
    let row = row.expect("a row of the field reference");
    // Each choice begins a line of the description: its name between backticks, and a colon.
    let described = row.split("<br>`").skip(1).filter_map(|line| line.split_once("`:"));
    let names: Vec<String> = described.map(|(name, _)| name.to_owned()).collect();
    assert!(names.len() > 1, "{row}");
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_choices_of_a_field_are_those_of_its_row() {
        assert_eq!(super::choices("spec.model.visionTower"), ["Frozen", "Trained"]);
    }
}
