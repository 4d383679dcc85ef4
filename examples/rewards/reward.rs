//! A reward function for the sandbox, without any crate:
//! `rustc --edition 2021 --target wasm32-unknown-unknown -O --crate-type cdylib -C strip=symbols reward.rs`
//! makes
//! `reward.wasm` (`rustup target add wasm32-unknown-unknown` once). What a module has to export:
//! docs/rewards.md.

use std::sync::Mutex;

/// The sample that is judged; every call has a fresh instance of the module.
static SAMPLE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Makes room for the JSON of a sample and says where.
#[no_mangle]
pub extern "C" fn alloc(len: usize) -> usize {
    SAMPLE.lock().map_or(0, |mut sample| {
        sample.resize(len, 0);
        sample.as_mut_ptr() as usize
    })
}

/// The value of the sample that was written there.
#[no_mangle]
pub extern "C" fn judge(_address: usize, _len: usize) -> f64 {
    let sample = SAMPLE.lock().map(|sample| sample.clone()).unwrap_or_default();
    let json = String::from_utf8_lossy(&sample);
    let texts = text(&json, "completion").zip(text(&json, "ground_truth"));
    // Not a number says that there is no verdict.
    texts.map_or(f64::NAN, |(completion, truth)| reward(&completion, &truth))
}

/// 1 for the ground truth, else 0: write your own reward here.
fn reward(completion: &str, truth: &str) -> f64 {
    if completion.trim() == truth.trim() { 1.0 } else { 0.0 }
}

/// A field that is a text, with the escapes of JSON that texts have most undone.
fn text(json: &str, field: &str) -> Option<String> {
    let start = json.find(&format!("\"{field}\":\""))? + field.len() + 4;
    let (mut found, mut rest) = (String::new(), json[start..].chars());
    loop {
        match rest.next()? {
            '"' => return Some(found),
            '\\' => match rest.next()? {
                'n' => found.push('\n'),
                't' => found.push('\t'),
                'u' => {
                    let code: String = rest.by_ref().take(4).collect();
                    found.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
                }
                other => found.push(other),
            },
            other => found.push(other),
        }
    }
}
