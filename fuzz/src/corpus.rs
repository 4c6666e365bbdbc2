//! Kept inputs: one text file for each target, one input to a line in hexadecimal digits; `#` begins a comment.
//!
//! A text file in place of a folder of small ones: what is added shows in a diff, and a finding has its story beside it.

use std::fmt::Write;

/// The kept inputs of a target.
pub fn kept(target: &str) -> Vec<Vec<u8>> {
    let text = match target {
        "elf" => include_str!("../corpus/elf.txt"),
        "eh_frame" => include_str!("../corpus/eh_frame.txt"),
        "lsda" => include_str!("../corpus/lsda.txt"),
        "lift" => include_str!("../corpus/lift.txt"),
        "profile" => include_str!("../corpus/profile.txt"),
        "optimize" => include_str!("../corpus/optimize.txt"),
        "checker" => include_str!("../corpus/checker.txt"),
        _ => "",
    };
    text.lines().filter_map(parse_line).collect()
}

/// The input on a line; `None` for comments and empty lines, and where something else than digits stands.
pub fn parse_line(line: &str) -> Option<Vec<u8>> {
    let digits = line.split('#').next().unwrap_or("").trim();
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    (!digits.is_empty()).then(|| digits.as_bytes().chunks(2).map(byte).collect())?
}

/// An input as a line, without its end.
pub fn to_line(input: &[u8]) -> String {
    let mut line = String::with_capacity(2 * input.len());
    for byte in input {
        let _infallible = write!(line, "{byte:02x}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back() {
        assert_eq!(parse_line(&to_line(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert_eq!(parse_line("00ff # found by chance"), Some(vec![0, 255]));
        assert_eq!(parse_line("# nothing"), None);
        assert_eq!(parse_line("0g"), None);
    }
}
