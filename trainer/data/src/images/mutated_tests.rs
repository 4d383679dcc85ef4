//! Images whose bytes are not as they should be are decoded or refused by their number in the row.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rlt_mutations::{cases, mutated};

use super::pixels::decode;

fn images() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    ["13x9.png", "1x150.png", "resized/13x9.png"]
        .iter()
        .filter_map(|name| fs::read(folder.join(name)).ok())
        .collect()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn an_image_of_any_bytes_is_decoded_or_refused(bytes in mutated(images())) {
        match decode(&bytes, 3) {
            Ok(pixels) => prop_assert_eq!(pixels.rgb.len(), 3 * pixels.width * pixels.height),
            Err(error) => prop_assert!(error.to_string().contains("image 3"), "{error}"),
        }
    }
}
