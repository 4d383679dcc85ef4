//! Resolving: every default is filled in, and what comes out is a manifest again.

use rlt_api::validate;

const QUICKSTART: &str = include_str!("../../examples/quickstart/job.yaml");

#[test]
fn the_quickstart_is_valid_and_every_default_is_filled_in() {
    let job = validate(QUICKSTART).unwrap();
    insta::assert_snapshot!(serde_saphyr::to_string(job.spec()).unwrap());
}
