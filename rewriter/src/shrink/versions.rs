//! The table of versions that a file needs of its libraries (`.gnu.version_r`), with one more in it.
//!
//! Source: Linux Standard Base, "Symbol Versioning": `Elf64_Verneed`, `Elf64_Vernaux`.

/// The version by which glibc from 2.36 on says that it reads `DT_RELR`, and by which older ones refuse a file that has it.
pub(super) const DT_RELR_VERSION: &str = "GLIBC_ABI_DT_RELR";
/// Bytes of either structure.
const ENTRY: usize = 16;

struct Need {
    version: u16,
    /// Offset of the library's name in the string table.
    file: u32,
    /// Hash, flags, index, offset of the name.
    versions: Vec<(u32, u16, u16, u32)>,
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn parse(table: &[u8]) -> Option<Vec<Need>> {
    let (mut needs, mut at) = (Vec::new(), 0usize);
    // No table has more entries than room for them.
    for _ in 0..table.len() / ENTRY {
        let count = half(table, at + 2)?;
        let mut need = Need { version: half(table, at)?, file: word(table, at + 4)?, versions: Vec::new() };
        let mut aux = at.checked_add(word(table, at + 8)? as usize)?;
        for _ in 0..count {
            need.versions.push((word(table, aux)?, half(table, aux + 4)?, half(table, aux + 6)?, word(table, aux + 8)?));
            aux = aux.checked_add(word(table, aux + 12)? as usize)?;
        }
        needs.push(need);
        match word(table, at + 12)? {
            0 => return Some(needs),
            next => at = at.checked_add(next as usize)?,
        }
    }
    None
}

fn write(needs: &[Need]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, need) in needs.iter().enumerate() {
        let size = ENTRY * (1 + need.versions.len());
        let next = if index + 1 == needs.len() { 0 } else { size as u32 };
        bytes.extend(need.version.to_le_bytes());
        bytes.extend((need.versions.len() as u16).to_le_bytes());
        [need.file, ENTRY as u32, next].into_iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        for (index, (hash, flags, other, name)) in need.versions.iter().enumerate() {
            let next = if index + 1 == need.versions.len() { 0 } else { ENTRY as u32 };
            bytes.extend(hash.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.extend(other.to_le_bytes());
            bytes.extend(name.to_le_bytes());
            bytes.extend(next.to_le_bytes());
        }
    }
    bytes
}

/// The hash of a symbol's name in the gABI.
fn elf_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

/// What the C library is asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing that has a version: nothing of an older loader would say that it can't read the file.
    Nothing,
    WithoutRelr,
    WithRelr,
}

/// What a file asks of glibc.
pub(super) fn asked(table: &[u8], strings: &[u8]) -> Option<Asked> {
    let needs = parse(table)?;
    let Some(libc) = needs.iter().find(|need| is_libc(strings, need.file)) else { return Some(Asked::Nothing) };
    let has_relr = libc.versions.iter().any(|version| name_at(strings, version.3) == DT_RELR_VERSION.as_bytes());
    Some(if has_relr { Asked::WithRelr } else { Asked::WithoutRelr })
}

fn is_libc(strings: &[u8], name: u32) -> bool {
    name_at(strings, name).starts_with(b"libc.so.")
}

fn name_at(strings: &[u8], offset: u32) -> &[u8] {
    let tail = strings.get(offset as usize..).unwrap_or(&[]);
    tail.split(|&byte| byte == 0).next().unwrap_or(&[])
}

/// The table with the version that `DT_RELR` asks for, whose name is at `name` in the string table; `used` are the indices that symbols have.
pub(super) fn with_relr(table: &[u8], strings: &[u8], used: u16, name: u32) -> Option<Vec<u8>> {
    let mut needs = parse(table)?;
    let known = needs.iter().flat_map(|need| &need.versions).map(|version| version.2 & 0x7fff).max().unwrap_or(1);
    let index = known.max(used).checked_add(1).filter(|&index| index < 0x7fff)?;
    let libc = needs.iter_mut().find(|need| is_libc(strings, need.file))?;
    libc.versions.push((elf_hash(DT_RELR_VERSION), 0, index, name));
    Some(write(&needs))
}

#[cfg(test)]
mod tests;
