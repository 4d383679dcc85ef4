//! Tests of resolving: every default is filled in, and the result is a valid manifest.

use rlt_api::validate;

const ARITHMETIC: &str = include_str!("fixtures/arithmetic.yaml");
const QUICKSTART: &str = include_str!("../../examples/quickstart/job.yaml");

#[test]
fn every_default_is_filled_in() {
    let job = validate(ARITHMETIC).unwrap();
    insta::assert_snapshot!(job.to_yaml().unwrap());
}

#[test]
fn the_quickstart_is_valid() {
    assert_eq!(validate(QUICKSTART).map(|job| job.name().to_owned()), Ok("quickstart".to_owned()));
}
