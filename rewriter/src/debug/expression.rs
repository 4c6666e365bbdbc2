//! Addresses of code in expressions.
//!
//! **Method.** `DW_OP_addr` holds an address of eight bytes, which is written over where it stands, so that an expression keeps its length. `DW_OP_addrx` names an entry of `.debug_addr`
//! that is changed there. Data keep their addresses.
//!
//! Source: DWARF 5 §2.5.

use gimli::{Encoding, Expression, Operation};

use super::DebugError;
use super::unit::Slice;

/// What an expression names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The address in its eight bytes from an offset on.
    Here {
        at: usize,
        old: u64,
    },
    Numbered(u64),
}

/// All addresses that it names.
pub(super) fn named(expression: &[u8], encoding: Encoding) -> Result<Vec<Named>, DebugError> {
    let mut found = Vec::new();
    collect(expression, (0, NESTED_MAX), encoding, &mut found)?;
    Ok(found)
}

/// Expressions in expressions: compilers write one.
const NESTED_MAX: u32 = 8;

/// `expression` begins at `start` of the whole; so many more may be nested in it.
fn collect(
    expression: &[u8],
    (start, nested): (usize, u32),
    encoding: Encoding,
    found: &mut Vec<Named>,
) -> Result<(), DebugError> {
    let mut operations = Expression(Slice::new(expression, gimli::LittleEndian)).operations(encoding);
    let bytes = Slice::new(expression, gimli::LittleEndian);
    loop {
        let operation = match operations.next() {
            Ok(Some(operation)) => operation,
            Ok(None) => return Ok(()),
            // An operation of a vendor: what follows can't be told, but only a debugger that knows it reads on.
            Err(gimli::Error::InvalidExpression(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = start + operations.offset_from(&Expression(bytes));
        match operation {
            Operation::Address { address } => found.push(Named::Here { at: end - 8, old: address }),
            Operation::AddressIndex { index } => found.push(Named::Numbered(index.0 as u64)),
            Operation::EntryValue { expression } => {
                let bytes = expression.slice();
                let nested = nested.checked_sub(1).ok_or(DebugError::Nested)?;
                collect(bytes, (end - bytes.len(), nested), encoding, found)?;
            }
            _ => {}
        }
    }
}
