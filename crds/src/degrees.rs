//! Parallelism degrees over which tensors and layers can be sharded.

/// Whether `sp` ranks can each take equally many query heads, and the key heads to which these attend.
pub fn divides_heads(sp: u32, (num_heads, num_kv_heads): (u64, u64)) -> bool {
    let sp = u64::from(sp);
    num_heads.is_multiple_of(sp) && (num_kv_heads.is_multiple_of(sp) || sp.is_multiple_of(num_kv_heads))
}

/// Whether `tp` ranks can sample with equal shards of every layer: of its heads and of its feed-forward
/// width.
pub fn tp_divides_layers(tp: u32, heads: (u64, u64), intermediate_size: u64) -> bool {
    divides_heads(tp, heads) && intermediate_size.is_multiple_of(tp.into())
}

/// Whether `tp` ranks can train with equal shards of every weight of a layer.
pub fn tp_divides_weights(tp: u32, heads: (u64, u64), intermediate_size: u64) -> bool {
    [heads.0, heads.1, intermediate_size].iter().all(|size| size.is_multiple_of(tp.into()))
}

/// Lists the degrees up to the number of query heads that pass `fits`, as text for an error message.
pub fn legal_degrees((num_heads, _): (u64, u64), fits: impl Fn(u32) -> bool) -> String {
    let degrees = (1..=u32::try_from(num_heads).unwrap_or(u32::MAX)).filter(|degree| fits(*degree));
    format!("one of {}", degrees.map(|sp| sp.to_string()).collect::<Vec<_>>().join(", "))
}
