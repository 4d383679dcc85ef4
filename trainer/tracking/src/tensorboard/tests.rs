//! An independent reader of event files. That TensorBoard itself reads them is a test of whole runs.

use std::collections::BTreeMap;

use super::*;

/// `(tag, step, value)` of every scalar in a file; panics where a checksum or a length is wrong.
pub(crate) fn read_scalars(mut bytes: &[u8]) -> Vec<(String, u64, f32)> {
    let mut scalars = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[8..12], masked_crc32c(&bytes[..8]).to_le_bytes(), "checksum of the length");
        let event = &bytes[12..12 + length];
        assert_eq!(
            bytes[12 + length..16 + length],
            masked_crc32c(event).to_le_bytes(),
            "checksum of the event"
        );
        bytes = &bytes[16 + length..];
        let event = fields(event);
        let step = event.get(&2).map_or(0, |step| u64::from_le_bytes(step[0].clone().try_into().unwrap()));
        for summary in event.get(&5).into_iter().flatten() {
            for scalar in fields(summary).get(&1).into_iter().flatten() {
                let scalar = fields(scalar);
                let tag = String::from_utf8(scalar[&1][0].clone()).unwrap();
                scalars.push((tag, step, f32::from_le_bytes(scalar[&2][0].clone().try_into().unwrap())));
            }
        }
    }
    scalars
}

/// The fields of a protobuf message by number; varints as eight bytes.
fn fields(mut message: &[u8]) -> BTreeMap<u64, Vec<Vec<u8>>> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = BTreeMap::<u64, Vec<Vec<u8>>>::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let num_bytes = match key & 7 {
            0 => {
                let value = varint(&mut message).to_le_bytes().to_vec();
                fields.entry(key >> 3).or_default().push(value);
                continue;
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        fields.entry(key >> 3).or_default().push(message[..num_bytes].to_vec());
        message = &message[num_bytes..];
    }
    fields
}

fn steps() -> Vec<StepMetrics> {
    let cold_start = BTreeMap::from([("sft/loss".to_owned(), 2.25)]);
    let cold_start = StepMetrics { stage: Stage::ColdStart, step: 1, timestamp: 1.7e9, values: cold_start };
    let training = (1..=300).map(|step| {
        let values = BTreeMap::from([
            ("critic/rewards/mean".to_owned(), step as f64 / 100.0),
            ("actor/grad_norm".to_owned(), if step == 2 { f64::NAN } else { 0.5 }),
        ]);
        StepMetrics { stage: Stage::Training, step, timestamp: 1.7e9 + step as f64, values }
    });
    std::iter::once(cold_start).chain(training).collect()
}

#[test]
fn every_finite_value_is_read_back_under_its_tag_and_step() {
    let folder = tempfile::tempdir().unwrap();
    let (history, new) = (steps()[..2].to_vec(), &steps()[2..]);
    let mut log = EventLog::open(folder.path(), &history.into()).unwrap();
    new.iter().for_each(|metrics| log.log_step(metrics).unwrap());
    let entries: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(entries.len(), 1);
    let scalars = read_scalars(&fs::read(entries[0].as_ref().unwrap().path()).unwrap());
    assert_eq!(scalars.len(), 1 + 300 + 299);
    assert!(scalars.contains(&("cold_start/sft/loss".into(), 1, 2.25)));
    assert!(scalars.contains(&("critic/rewards/mean".into(), 300, 3.0)));
    assert!(!scalars.iter().any(|(tag, step, _)| tag == "actor/grad_norm" && *step == 2));
}
