//! The lines of the trace: `I  address,size` for an instruction, then ` L`, ` S` or ` M` for what it loads, stores or does both to.

use std::io::{BufRead, BufReader};
use std::path::Path;

use super::follow::{Access, Follower};
use crate::shell::Result;

/// Reads to the end, or until so many instructions of the program were followed. True if it was the end.
pub(super) fn read(pipe: &Path, limit: u64, follower: &mut Follower<'_, '_, '_>) -> Result<bool> {
    let file = std::fs::File::open(pipe).map_err(|error| format!("cannot open the trace: {error}"))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line).map_err(|error| format!("cannot read the trace: {error}"))?;
        if length == 0 {
            return Ok(true);
        }
        match line.as_slice() {
            [b'I', b' ', b' ', rest @ ..] => {
                if let Some((address, _)) = fields(rest) {
                    follower.instruction(address);
                    if follower.num_instructions() >= limit {
                        return Ok(false);
                    }
                }
            }
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => {
                if let Some((address, size)) = fields(rest) {
                    follower.access(Access { address, size, loads: *kind != b'S', stores: *kind != b'L' });
                }
            }
            _ => {}
        }
    }
}

/// `address,size`, in hexadecimal and decimal.
fn fields(text: &[u8]) -> Option<(u64, u32)> {
    let comma = memchr(text)?;
    let mut address = 0u64;
    for &byte in &text[..comma] {
        address = address << 4 | u64::from((byte as char).to_digit(16)?);
    }
    let mut size = 0u32;
    for &byte in text[comma + 1..].iter().take_while(|b| b.is_ascii_digit()) {
        size = size.checked_mul(10)?.checked_add(u32::from(byte - b'0'))?;
    }
    Some((address, size))
}

fn memchr(text: &[u8]) -> Option<usize> {
    text.iter().position(|&b| b == b',')
}
