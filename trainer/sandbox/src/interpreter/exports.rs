//! Rewriting of a module so that its state can be copied: its mutable globals and first table are exported,
//! too. A copy needs them besides the memory, and compilers do not export them.

/// Name of the table's export.
pub(super) const TABLE: &str = "rlt.table";

/// Name of the export of the mutable global with this index.
pub(super) fn global(idx: usize) -> String {
    format!("rlt.global.{idx}")
}

/// Ids of sections of a module.
const CUSTOM: u8 = 0;
const IMPORT: u8 = 2;
const TABLES: u8 = 4;
const GLOBALS: u8 = 6;
const EXPORT: u8 = 7;

/// A rewritten module, and the number of its mutable globals.
pub(super) struct Exposed {
    pub(super) module: Vec<u8>,
    pub(super) num_globals: usize,
}

/// Adds the exports to a module, and removes custom sections. `None` if it imports anything but functions,
/// has no table or no exports, or cannot be parsed: then its state cannot be copied.
pub(super) fn exposed(module: &[u8]) -> Option<Exposed> {
    let mut reader = Reader(module.get(8..)?);
    let (mut sections, mut mutable, mut has_table) = (Vec::new(), Vec::new(), false);
    while !reader.0.is_empty() {
        let id = reader.byte()?;
        let len = reader.number()?;
        let body = reader.take(len)?;
        match id {
            CUSTOM => continue,
            IMPORT => only_functions(body)?,
            TABLES => has_table = Reader(body).number()? > 0,
            GLOBALS => mutable = mutable_globals(body)?,
            _ => {}
        }
        sections.push((id, body));
    }
    let mut written = module.get(..8)?.to_vec();
    let mut has_exports = false;
    for (id, body) in sections {
        let more = (id == EXPORT).then(|| with_exports(body, &mutable));
        has_exports |= more.is_some();
        let body = more.unwrap_or_else(|| Some(body.to_vec()))?;
        written.push(id);
        push_number(&mut written, body.len());
        written.extend(body);
    }
    (has_table && has_exports).then_some(Exposed { module: written, num_globals: mutable.len() })
}

fn only_functions(body: &[u8]) -> Option<()> {
    let mut reader = Reader(body);
    for _ in 0..reader.number()? {
        for _ in 0..2 {
            let len = reader.number()?;
            reader.take(len)?;
        }
        if reader.byte()? != 0 {
            return None;
        }
        reader.number()?;
    }
    Some(())
}

/// Indices of the mutable globals.
fn mutable_globals(body: &[u8]) -> Option<Vec<usize>> {
    let mut reader = Reader(body);
    let mut found = Vec::new();
    for idx in 0..reader.number()? {
        let _type = reader.byte()?;
        if reader.byte()? == 1 {
            found.push(idx);
        }
        reader.skip_constant()?;
    }
    Some(found)
}

fn with_exports(body: &[u8], mutable: &[usize]) -> Option<Vec<u8>> {
    const TABLE_KIND: u8 = 1;
    const GLOBAL_KIND: u8 = 3;
    let mut reader = Reader(body);
    let num_exports = reader.number()?;
    let mut written = Vec::new();
    push_number(&mut written, num_exports + 1 + mutable.len());
    written.extend(reader.0);
    let mut push = |name: &str, kind: u8, idx: usize| {
        push_number(&mut written, name.len());
        written.extend(name.as_bytes());
        written.push(kind);
        push_number(&mut written, idx);
    };
    push(TABLE, TABLE_KIND, 0);
    for (number, idx) in mutable.iter().enumerate() {
        push(&global(number), GLOBAL_KIND, *idx);
    }
    Some(written)
}

/// A parser of bytes, which it consumes from the beginning.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Parses a number in LEB128 of at most 32 bits.
    fn number(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Skips the instructions of a constant expression, `end` included.
    fn skip_constant(&mut self) -> Option<()> {
        loop {
            match self.byte()? {
                0x0b => return Some(()),
                // i32.const and i64.const, global.get, ref.null and ref.func have a number of up to ten
                // bytes.
                0x41 | 0x42 | 0x23 | 0xd0 | 0xd2 => while self.byte()? >= 0x80 {},
                0x43 => drop(self.take(4)?),
                0x44 => drop(self.take(8)?),
                // Arithmetic instructions of extended constant expressions have no operand.
                0x6a..=0x6c | 0x7c..=0x7e => {}
                _ => return None,
            }
        }
    }
}

fn push_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
