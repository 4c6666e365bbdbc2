//! Unwind tables at another address.
//!
//! **Method.** `.eh_frame` and `.eh_frame_hdr` as compilers and relift write them: all pointers are 32-bit distances, from where they are
//! stored or from the search table's start. A table that moves changes each of them by how far it moves. What is encoded otherwise is left where it
//! is: `None`.
//!
//! Source: Linux Standard Base, "Exception Frames"; DWARF 4 §6.4.

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const FROM_HERE: u8 = 0x1b;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const FROM_TABLE: u8 = 0x3b;
const UDATA4: u8 = 0x03;
const OMITTED: u8 = 0xff;
const INDIRECT: u8 = 0x80;

/// What of a CIE says where pointers are.
#[derive(Copy, Clone, Default)]
struct Cie {
    has_lsda: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn add(bytes: &mut [u8], at: usize, delta: i64) -> Option<()> {
    let value = i64::from(word(bytes, at)? as i32).checked_add(delta)?;
    bytes.get_mut(at..at + 4)?.copy_from_slice(&i32::try_from(value).ok()?.to_le_bytes());
    Some(())
}

fn leb_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    while bytes.get(at)? & 0x80 != 0 {
        at += 1;
    }
    Some(at + 1)
}

/// `.eh_frame`, `delta` bytes further on.
pub(super) fn entries(table: &[u8], delta: i64) -> Option<Vec<u8>> {
    let mut out = table.to_vec();
    let mut cies: std::collections::BTreeMap<usize, Cie> = std::collections::BTreeMap::new();
    let mut at = 0usize;
    while at + 4 <= table.len() {
        let length = word(table, at)? as usize;
        if length == 0 {
            at += 4;
            continue;
        }
        let end = at.checked_add(4)?.checked_add(length).filter(|&end| end <= table.len())?;
        match word(table, at + 4)? as usize {
            0 => {
                let cie = shift_cie(table, &mut out, at + 8, delta)?;
                cies.insert(at, cie);
            }
            back => {
                let cie = *cies.get(&(at + 4).checked_sub(back)?)?;
                add(&mut out, at + 8, -delta)?;
                let data = leb_end(table, at + 16)?;
                if cie.has_lsda && word(table, data)? != 0 {
                    add(&mut out, data, -delta)?;
                }
            }
        }
        at = end;
    }
    Some(out)
}

fn shift_cie(table: &[u8], out: &mut [u8], start: usize, delta: i64) -> Option<Cie> {
    let mut cie = Cie::default();
    if *table.get(start)? != 1 {
        return None;
    }
    let letters_len = table.get(start + 1..)?.iter().position(|&byte| byte == 0)?;
    let letters = table.get(start + 1..start + 1 + letters_len)?;
    let mut at = leb_end(table, leb_end(table, start + letters_len + 2)?)? + 1;
    let (first, rest) = letters.split_first()?;
    if *first != b'z' {
        return None;
    }
    at = leb_end(table, at)?;
    let mut has_code_pointers = false;
    for letter in rest {
        match letter {
            b'S' | b'B' => continue,
            b'R' => has_code_pointers = *table.get(at)? == FROM_HERE,
            b'L' => match *table.get(at)? {
                FROM_HERE => cie.has_lsda = true,
                OMITTED => {}
                _ => return None,
            },
            b'P' => {
                if table.get(at)? & !INDIRECT != FROM_HERE {
                    return None;
                }
                add(out, at + 1, -delta)?;
                at += 4;
            }
            _ => return None,
        }
        at += 1;
    }
    has_code_pointers.then_some(cie)
}

/// `.eh_frame_hdr`, `delta` bytes further on, for entries that are `entries_delta` bytes further on.
pub(super) fn search_table(table: &[u8], delta: i64, entries_delta: i64) -> Option<Vec<u8>> {
    let mut out = table.to_vec();
    if table.get(..4)? != [1, FROM_HERE, UDATA4, FROM_TABLE] {
        return None;
    }
    add(&mut out, 4, entries_delta - delta)?;
    let count = word(table, 8)? as usize;
    if count.checked_mul(8)?.checked_add(12)? > table.len() {
        return None;
    }
    for index in 0..count {
        add(&mut out, 12 + 8 * index, -delta)?;
        add(&mut out, 16 + 8 * index, entries_delta - delta)?;
    }
    Some(out)
}
