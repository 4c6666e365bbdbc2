//! What stands right before a function: its lead, and bodies that jump into it, or over it.
//!
//! **Method.** Parts are put one before the other, from the function on: the lead, which runs into it, then the bodies, the shortest first, so that as many as can be reach with a jump of two bytes.
//! A body whose last instructions are on the lead has the rest of them alone, and jumps to where these begin. All of it is one piece of code to who lays it out.
//!
//! Who executes a body comes to the function with the next line of the cache, or the same one.

use crate::edit::NewCode;

/// As far as a short jump reaches.
const REACH: u32 = 127;

/// Parts, that next to the function first.
#[derive(Debug, Default)]
pub(super) struct Near {
    parts: Vec<NewCode>,
    len: u32,
}

impl Near {
    /// Puts a part that runs into what is there already; where it begins, in bytes before the function.
    pub(super) fn push(&mut self, part: NewCode) -> u32 {
        self.len += part.bytes.len() as u32;
        self.parts.push(part);
        self.len
    }

    /// Puts a part that goes on so many bytes before the function.
    pub(super) fn push_body(&mut self, mut part: NewCode, target: u32) -> u32 {
        let over = self.len - target;
        match u8::try_from(over).ok().filter(|_| over <= REACH) {
            Some(over) => part.bytes.extend([0xeb, over]),
            None => part.bytes.extend([&[0xe9][..], &over.to_le_bytes()].concat()),
        }
        self.push(part)
    }

    /// All of it in the order in which it stands.
    pub(super) fn code(self) -> Option<NewCode> {
        let mut code = NewCode::default();
        for part in self.parts.into_iter().rev() {
            code.append(part);
        }
        (!code.bytes.is_empty()).then_some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: &[u8]) -> NewCode {
        NewCode { bytes: bytes.to_vec(), ..NewCode::default() }
    }

    #[test]
    fn bodies_jump_over_what_stands_between_them_and_the_function_or_into_it() {
        let mut near = Near::default();
        assert_eq!(near.push(code(&[1, 2, 3])), 3);
        assert_eq!(near.push_body(code(&[4]), 0), 6);
        assert_eq!(near.push_body(code(&[5, 6]), 2), 10);
        let bytes = near.code().expect("there is some").bytes;
        assert_eq!(bytes, [5, 6, 0xeb, 4, 4, 0xeb, 3, 1, 2, 3]);
    }

    #[test]
    fn a_body_that_is_too_far_has_a_long_jump() {
        let mut near = Near::default();
        near.push(code(&[0x90; 127]));
        near.push_body(code(&[1]), 0);
        near.push_body(code(&[2]), 0);
        let bytes = near.code().expect("there is some").bytes;
        assert_eq!(bytes[..9], [2, 0xe9, 130, 0, 0, 0, 1, 0xeb, 127]);
    }
}
