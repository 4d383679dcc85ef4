//! Patches held against transformers' (`tests/fixtures/images/make.py`), images of rows, and their
//! placeholders.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rlt_api::spec::VisionSpec;
use serde_json::{Value, json};

use super::pixels::{Pixels, decode};
use super::placeholders::{expand, split};
use super::source::{MAX_FILE_BYTES, bytes_of};
use super::*;
use crate::RowLocation;

const IMAGES: ImageColumn<'static> = ImageColumn { key: "images", folders: &[] };

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images")
}

/// The processor of the fixtures, whose model has the token 9 for images.
fn processor() -> ImageProcessor {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({ "image_token_id": 9, "vision_config": { "patch_size": 14 } });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let settings = json!({ "size": { "shortest_edge": 3136, "longest_edge": 18816 } });
    fs::write(folder.path().join("preprocessor_config.json"), settings.to_string()).unwrap();
    ImageProcessor::load(folder.path()).unwrap().unwrap()
}

fn pixels(file: &Path) -> Pixels {
    decode(&fs::read(file).unwrap(), 1).unwrap()
}

fn row(images: Value) -> Row {
    let file: Arc<Path> = fixtures().join("rows.jsonl").into();
    let fields = json!({ "images": images }).as_object().unwrap().clone();
    Row { location: RowLocation { file: Some(file), number: 3 }, fields }
}

#[test]
fn a_model_whose_tower_is_left_out_has_no_processor() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}, "vision_config": {}
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(ImageProcessor::load(folder.path()).unwrap().is_none());
}

#[test]
fn resized_pixels_are_those_of_transformers() {
    let mut sizes = 0;
    for entry in fs::read_dir(fixtures().join("resized")).unwrap() {
        let name = entry.unwrap().file_name();
        let (original, expected) =
            (pixels(&fixtures().join(&name)), pixels(&fixtures().join("resized").join(&name)));
        let size = processor().size(original.height, original.width).unwrap();
        assert_eq!(size, (expected.height, expected.width), "{name:?}");
        let ours = original.resized(size.0, size.1).permute([1, 2, 0]).contiguous();
        let ours = Vec::<f32>::try_from(ours.view(-1)).unwrap();
        let differences =
            ours.iter().zip(&expected.rgb).filter(|(ours, theirs)| **ours != f32::from(**theirs));
        assert_eq!(differences.count(), 0, "{name:?}");
        sizes += 1;
    }
    assert_eq!(sizes, 12);
}

#[test]
fn patches_are_those_of_transformers() {
    let bytes = fs::read(fixtures().join("patches.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let expected = tensors.tensor("patches").unwrap();
    let image = processor().process(&pixels(&fixtures().join("57x43.png")), 1).unwrap();
    assert_eq!(expected.shape(), [image.grid.num_patches(), 1176]);
    let expected = expected.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let difference =
        expected.zip(&image.patches).map(|(theirs, ours)| (theirs - ours).abs()).fold(0.0, f32::max);
    assert!(difference <= 1e-6, "{difference}");
}

#[test]
fn an_image_is_read_from_a_path_from_bytes_and_from_a_url_of_data() {
    let path = fixtures().join("56x56.png");
    let encoded = BASE64_STANDARD.encode(fs::read(&path).unwrap());
    let images = json!([
        "56x56.png",
        path.to_str().unwrap(),
        { "path": "56x56.png", "bytes": null },
        { "bytes": encoded, "path": "elsewhere.png" },
        format!("data:image/png;base64,{encoded}"),
    ]);
    let images = read(&row(images), IMAGES, Some(&processor())).unwrap();
    assert!(images.iter().all(|image| image == &images[0]) && images.len() == 5);
    let other = read(&row(json!("57x43.png")), IMAGES, Some(&processor())).unwrap();
    assert_ne!(other[0].digest, images[0].digest);
    for none in [json!(null), json!([])] {
        assert_eq!(read(&row(none), IMAGES, None).unwrap(), []);
    }
}

/// A JPEG of 16 x 8 pixels, its left half white, with an orientation in its EXIF data.
fn oriented(orientation: u8) -> Vec<u8> {
    let picture = image::RgbImage::from_fn(16, 8, |x, _| image::Rgb([if x < 8 { 255 } else { 0 }; 3]));
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, image::ImageFormat::Jpeg).unwrap();
    let jpeg = file.into_inner();
    // TIFF of one entry: tag 0x0112, a short.
    let tiff = [&b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[orientation], &[0; 6]].concat();
    let length = u16::try_from(2 + 6 + tiff.len()).unwrap().to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, b"Exif\0\0", &tiff, &jpeg[2..]].concat()
}

/// Expected positions are those of PIL's `ImageOps.exif_transpose`.
#[test]
fn a_picture_is_turned_by_its_exif_orientation() {
    for (orientation, size, white) in [
        (1, (16, 8), (2, 4)),
        (2, (16, 8), (13, 4)),
        (3, (16, 8), (13, 4)),
        (4, (16, 8), (2, 4)),
        (5, (8, 16), (4, 2)),
        (6, (8, 16), (4, 2)),
        (7, (8, 16), (4, 13)),
        (8, (8, 16), (4, 13)),
        (9, (16, 8), (2, 4)),
    ] {
        let pixels = decode(&oriented(orientation), 1).unwrap();
        assert_eq!((pixels.width, pixels.height), size, "{orientation}");
        let at = |(x, y): (usize, usize)| pixels.rgb[(y * pixels.width + x) * 3];
        let black = (size.0 - 1 - white.0, size.1 - 1 - white.1);
        assert!(at(white) > 200 && at(black) < 50, "{orientation}: {} {}", at(white), at(black));
    }
}

/// Images of 16 bits and of four inks (`tests/fixtures/images/make_deep.py`).
#[test]
fn colours_become_the_rgb_that_pil_makes_of_them() {
    let expected = fs::read_to_string(fixtures().join("deep.json")).unwrap();
    let expected: std::collections::BTreeMap<String, Vec<u8>> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), 5);
    for (name, expected) in expected {
        let ours = pixels(&fixtures().join("deep").join(&name)).rgb;
        // Decoders of JPEG round differently.
        let bound = if name.ends_with(".jpg") { 2 } else { 0 };
        let differences = ours.iter().zip(&expected).map(|(ours, theirs)| ours.abs_diff(*theirs));
        assert_eq!(ours.len(), expected.len(), "{name}");
        assert!(differences.max() <= Some(bound), "{name}: {ours:?} {expected:?}");
    }
}

#[test]
fn files_that_are_not_regular_or_huge_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (huge, pipe) = (folder.path().join("huge.png"), folder.path().join("pipe.png"));
    fs::File::create(&huge).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let folders = ["/dev".to_owned(), folder.path().display().to_string()];
    let column = ImageColumn { folders: &folders, ..IMAGES };
    for (path, expected) in [
        (Path::new("/dev/zero"), "expected a regular file, found a device"),
        (pipe.as_path(), "expected a regular file, found a pipe"),
        (folder.path(), "expected a regular file, found a folder"),
        (huge.as_path(), "expected at most 67108864 bytes, found more"),
    ] {
        let error = bytes_of(&json!(path), 1, column, None).unwrap_err();
        assert_eq!(error.to_string(), format!("read image 1 of column \"images\" from {}", path.display()));
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), expected);
    }
}

#[test]
fn a_row_names_images_below_the_folder_of_its_file_and_elsewhere_only_if_the_manifest_allows_it() {
    let outer = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(outer.path()).unwrap();
    let (own, other) = (root.join("own"), root.join("other"));
    for folder in [&own, &other] {
        fs::create_dir(folder).unwrap();
        fs::copy(fixtures().join("56x56.png"), folder.join("a.png")).unwrap();
    }
    std::os::unix::fs::symlink(other.join("a.png"), own.join("link.png")).unwrap();
    let of = |name: &str, folders: &[String]| {
        let file: Arc<Path> = own.join("rows.jsonl").into();
        let fields = json!({ "images": [name] }).as_object().unwrap().clone();
        let row = Row { location: RowLocation { file: Some(file), number: 3 }, fields };
        read(&row, ImageColumn { folders, ..IMAGES }, Some(&processor()))
    };
    assert_eq!(of("../own/a.png", &[]).unwrap().len(), 1);
    let absolute = other.join("a.png").display().to_string();
    for name in ["../other/a.png", "link.png", &absolute, &format!("file://{absolute}")] {
        let error = of(name, &[]).unwrap_err();
        assert!(error.to_string().ends_with("rows.jsonl row 3"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("read image 1 of column \"images\" from "), "{source}");
        assert!(source.contains(&format!("it leads to {absolute}, outside")), "{source}");
        assert!(source.ends_with("add a folder that holds it to data.imageFolders"), "{source}");
        assert_eq!(of(name, &[other.display().to_string()]).unwrap().len(), 1, "{name}");
    }
}

/// Grey pixels take three times as much as RGB.
#[test]
fn an_image_of_too_many_pixels_is_refused_before_it_is_decoded() {
    let mut file = std::io::Cursor::new(Vec::new());
    image::GrayImage::new(16_000, 4_200).write_to(&mut file, image::ImageFormat::Png).unwrap();
    let error = decode(&file.into_inner(), 2).unwrap_err().to_string();
    assert_eq!(error, "decode image 2 of 16000 x 4200 pixels: expected at most 67108864 pixels");
}

#[test]
fn errors_of_an_image_name_its_row_and_number() {
    let truncated = &fs::read(fixtures().join("200x201.png")).unwrap()[..2000];
    // The header states 60,000 x 60,000 pixels, but the file has the data of 56 x 56.
    let mut huge = fs::read(fixtures().join("56x56.png")).unwrap();
    huge[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let bytes = |bytes: &[u8]| json!({ "bytes": BASE64_STANDARD.encode(bytes) });
    let long = {
        let mut file = std::io::Cursor::new(Vec::new());
        image::RgbImage::new(1000, 2).write_to(&mut file, image::ImageFormat::Png).unwrap();
        file.into_inner()
    };
    for (image, expected) in [
        (json!("nowhere.png"), "read image 2 of column \"images\" from"),
        (json!(7), "read image 2: expected a path, or an object with `bytes` or `path`, found 7"),
        (json!({ "bytes": "%" }), "read image 2: expected a path"),
        (bytes(truncated), "decode image 2"),
        (bytes(&huge), "decode image 2"),
        (bytes(b"GIF89a"), "decode image 2"),
        (bytes(&long), "resize image 2 of 1000 x 2 pixels: one side may be at most 200 times the other"),
    ] {
        let error = read(&row(json!(["56x56.png", image])), IMAGES, Some(&processor())).unwrap_err();
        assert!(error.to_string().ends_with("rows.jsonl row 3"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with(expected), "{source}");
    }
    let error = read(&row(json!(["56x56.png"])), IMAGES, None).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "use the 1 images of the row: the model has no vision tower");
}

#[test]
fn each_placeholder_becomes_a_part_and_each_image_the_tokens_of_its_pieces() {
    let messages = [
        json!({ "role": "system", "content": "look" }),
        json!({ "role": "user", "content": "<image>What is <image>?" }),
        json!({ "role": "user", "content": [{ "type": "image" }, { "type": "text", "text": "a" }] }),
    ];
    let parts = json!([{ "type": "image" }, { "type": "text", "text": "What is " }, { "type": "image" }, { "type": "text", "text": "?" }]);
    let found = split(&messages, 3).unwrap();
    assert_eq!((&found[0], &found[1]["content"], &found[2]), (&messages[0], &parts, &messages[2]));
    let error = split(&messages, 2).unwrap_err().to_string();
    assert!(error.starts_with("place 2 images of the row: its messages have 3 placeholders"), "{error}");

    let processor = processor();
    let images = ["56x56.png", "70x126.png"]
        .map(|name| processor.process(&pixels(&fixtures().join(name)), 1).unwrap());
    assert_eq!(images.each_ref().map(|image| processor.num_tokens(image)), [4, 8]);
    let known = |tokens: &[u32]| tokens.iter().map(|token| (*token, *token == 3)).collect::<Vec<_>>();
    let tokens = expand(known(&[1, 9, 2, 9, 3]), &images, &processor).unwrap();
    assert_eq!(tokens, known(&[&[1][..], &[9; 4], &[2], &[9; 8], &[3]].concat()));
    assert!(expand(known(&[1, 9, 9, 9]), &images, &processor).is_err());
}

#[test]
fn settings_that_make_no_sense_are_named_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let load = |config: Value, settings: Value| {
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        fs::write(folder.path().join("preprocessor_config.json"), settings.to_string()).unwrap();
        ImageProcessor::load(folder.path())
    };
    assert!(load(json!({ "model_type": "llama" }), json!({})).unwrap().is_none());
    let config = json!({ "image_token_id": 9, "vision_config": {} });
    for (settings, expected) in [
        (json!({ "patch_size": 0 }), "patch_size must be from 1 to 1024"),
        (json!({ "max_pixels": -1 }), "max_pixels must be at least 1"),
        (json!({ "image_mean": [0.5] }), "image_mean must be a list of three numbers"),
    ] {
        let error = load(config.clone(), settings).unwrap_err().to_string();
        assert!(error.ends_with(&format!("preprocessor_config.json: {expected}")), "{error}");
    }
    let error = load(json!({ "vision_config": {} }), json!({})).unwrap_err().to_string();
    assert!(error.ends_with("config.json: image_token_id is no token id"), "{error}");
}

/// Sides below half a token are left out: the least area is reached from below by a root that may be rounded
/// up.
#[test]
fn a_square_takes_as_many_tokens_as_the_plan_counts() {
    for (patch, merge) in [(1, 1), (4, 2), (7, 2), (14, 2), (14, 3), (250, 2)] {
        let tower =
            json!({ "hiddenSize": 8, "numLayers": 1, "numHeads": 2, "patchSize": patch, "mergeSize": merge });
        let tower: VisionSpec = serde_json::from_value(tower).unwrap();
        let processor = ImageProcessor::of_new_tower(&tower, 9);
        let token: usize = patch * merge;
        for side in (token.div_ceil(2)..4097).step_by(if token > 2 { 1 } else { 7 }) {
            let (height, width) = processor.size(side, side).unwrap();
            let tokens = (height / token) * (width / token);
            assert_eq!(
                tokens as u32,
                VisionSpec::tokens_of_square(side as u32, token as u32),
                "{side} {token}"
            );
        }
    }
}
