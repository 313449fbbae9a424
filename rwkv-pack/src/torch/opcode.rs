//! The pickle instructions, by their names in Python's `pickletools`.

macro_rules! opcodes {
    ($($name:ident = $byte:literal,)*) => {
        $(pub(super) const $name: u8 = $byte;)*
    };
}

// What tensor files use, protocols 2 to 5.
opcodes! {
    PROTO = 0x80,
    FRAME = 0x95,
    STOP = b'.',
    MARK = b'(',
    NONE = b'N',
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    BININT = b'J',
    BININT1 = b'K',
    BININT2 = b'M',
    LONG1 = 0x8a,
    BINFLOAT = b'G',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE = b'X',
    BINUNICODE8 = 0x8d,
    EMPTY_TUPLE = b')',
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    TUPLE = b't',
    EMPTY_LIST = b']',
    APPEND = b'a',
    APPENDS = b'e',
    EMPTY_DICT = b'}',
    SETITEM = b's',
    SETITEMS = b'u',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    MEMOIZE = 0x94,
    BINGET = b'h',
    LONG_BINGET = b'j',
    GLOBAL = b'c',
    STACK_GLOBAL = 0x93,
    REDUCE = b'R',
    BUILD = b'b',
    BINPERSID = b'Q',
}

/// The instructions that exist and are refused. Some run code, the others have no place in a tensor file.
const REFUSED: [(u8, &str); 32] = [
    (b'I', "INT"),
    (b'L', "LONG"),
    (0x8b, "LONG4"),
    (b'S', "STRING"),
    (b'T', "BINSTRING"),
    (b'U', "SHORT_BINSTRING"),
    (b'B', "BINBYTES"),
    (b'C', "SHORT_BINBYTES"),
    (0x8e, "BINBYTES8"),
    (0x96, "BYTEARRAY8"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
    (b'V', "UNICODE"),
    (b'F', "FLOAT"),
    (b'l', "LIST"),
    (b'd', "DICT"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
    (b'g', "GET"),
    (b'p', "PUT"),
    (b'0', "POP"),
    (b'1', "POP_MARK"),
    (b'2', "DUP"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (0x81, "NEWOBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
];

/// The name of a refused instruction, or `None` for a byte that is no instruction.
pub(super) fn refused_name(opcode: u8) -> Option<&'static str> {
    REFUSED.iter().find(|row| row.0 == opcode).map(|row| row.1)
}
