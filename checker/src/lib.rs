//! The independent checker: re-reads what the producer wrote with other parsers and another disassembler.
