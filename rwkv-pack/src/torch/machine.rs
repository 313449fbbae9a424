//! The stack machine that a pickle is a program for, with the instructions that tensor files use.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::error::{PackError, PackErrorKind};
use crate::torch::global::Global;
use crate::torch::opcode;

const MOST_INSTRUCTIONS: u64 = 1 << 22;

/// A value on the stack. Strings are borrowed from the pickle, compound values are places in the machine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Float,
    Str(&'a str),
    /// A range of `Machine::items`.
    Tuple(usize, usize),
    /// What is in a list is not kept.
    List,
    Dict(usize),
    Global(Global),
    Storage(usize),
    Tensor(usize),
}

#[derive(Debug)]
pub(super) struct Storage<'a> {
    pub key: &'a str,
    /// `None`: raw bytes.
    pub dtype: Option<DType>,
    pub count: u64,
}

#[derive(Debug)]
pub(super) struct Tensor {
    pub storage: usize,
    pub dtype: DType,
    pub first: u64,
    pub shape: Vec<usize>,
    pub strides: Vec<u64>,
}

pub(super) struct Machine<'a> {
    pickle: &'a [u8],
    at: usize,
    /// Where the current instruction began.
    instruction: usize,
    pub stack: Vec<Value<'a>>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    pub items: Vec<Value<'a>>,
    pub dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    pub storages: Vec<Storage<'a>>,
    pub tensors: Vec<Tensor>,
}

impl<'a> Machine<'a> {
    pub fn new(pickle: &'a [u8]) -> Self {
        Self {
            pickle,
            at: 0,
            instruction: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            items: Vec::new(),
            dicts: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Where the current instruction begins.
    pub fn instruction(&self) -> u64 {
        self.instruction as u64
    }

    /// Runs to the end and returns the one value that is left.
    pub fn run(&mut self) -> Result<Value<'a>, PackError> {
        if self.pickle.first() != Some(&opcode::PROTO) {
            let line = "its pickle is of protocol 0 or 1, or none: expected protocol 2 to 5, as torch writes";
            return Err(PackError::new(PackErrorKind::Unsupported, line));
        }
        for _ in 0..MOST_INSTRUCTIONS {
            self.instruction = self.at;
            let [code] = self.bytes()?;
            if code == opcode::STOP {
                return self.stop();
            }
            self.step(code)?;
        }
        Err(PackError::malformed(format!("its pickle has more than {MOST_INSTRUCTIONS} instructions")))
    }

    fn stop(&mut self) -> Result<Value<'a>, PackError> {
        let left = self.pickle.len() - self.at;
        if left != 0 {
            return Err(PackError::malformed(format!("its pickle has {left} bytes after its end")));
        }
        match (self.stack.as_slice(), self.marks.as_slice()) {
            (&[root], []) => Ok(root),
            (values, _) => {
                Err(PackError::malformed(format!("its pickle leaves {} values, expected one", values.len())))
            }
        }
    }

    fn step(&mut self, code: u8) -> Result<(), PackError> {
        match code {
            opcode::PROTO => return self.protocol(),
            opcode::FRAME => {
                // A hint for readers of streams.
                self.bytes::<8>()?;
            }
            opcode::MARK => self.marks.push(self.stack.len()),
            opcode::NONE => self.stack.push(Value::None),
            opcode::NEWTRUE | opcode::NEWFALSE => self.stack.push(Value::Bool),
            opcode::BININT => {
                let value = i32::from_le_bytes(self.bytes()?);
                self.stack.push(Value::Int(value.into()));
            }
            opcode::BININT1 => {
                let [value] = self.bytes()?;
                self.stack.push(Value::Int(value.into()));
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.bytes()?);
                self.stack.push(Value::Int(value.into()));
            }
            opcode::LONG1 => self.long()?,
            opcode::BINFLOAT => {
                self.bytes::<8>()?;
                self.stack.push(Value::Float);
            }
            opcode::SHORT_BINUNICODE => {
                let [len] = self.bytes()?;
                self.string(len.into())?;
            }
            opcode::BINUNICODE => {
                let len = u32::from_le_bytes(self.bytes()?);
                self.string(len.into())?;
            }
            opcode::BINUNICODE8 => {
                let len = u64::from_le_bytes(self.bytes()?);
                self.string(len)?;
            }
            opcode::EMPTY_TUPLE => self.tuple(0)?,
            opcode::TUPLE1 => self.tuple(1)?,
            opcode::TUPLE2 => self.tuple(2)?,
            opcode::TUPLE3 => self.tuple(3)?,
            opcode::TUPLE => {
                let mark = self.mark()?;
                self.tuple(self.stack.len() - mark)?;
            }
            opcode::EMPTY_LIST => self.stack.push(Value::List),
            opcode::APPEND | opcode::APPENDS => return self.append(code),
            opcode::EMPTY_DICT => self.dict(),
            opcode::SETITEM | opcode::SETITEMS => return self.set_items(code),
            opcode::BINPUT | opcode::LONG_BINPUT | opcode::MEMOIZE => return self.put(code),
            opcode::BINGET | opcode::LONG_BINGET => return self.get(code),
            opcode::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                return self.global(module, name);
            }
            opcode::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Str(module), Value::Str(name)) = (module, name) else {
                    return Err(PackError::malformed(
                        "its pickle imports something that is not named by strings",
                    ));
                };
                return self.global(module, name);
            }
            opcode::REDUCE => return self.reduce(),
            opcode::BUILD => return self.build(),
            opcode::BINPERSID => return self.persistent_id(),
            code => return Err(refused(code)),
        }
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), PackError> {
        let [version] = self.bytes()?;
        if self.instruction != 0 || !(2..=5).contains(&version) {
            let line =
                format!("its pickle states protocol {version}, expected 2 to 5, once, at its beginning");
            return Err(PackError::new(PackErrorKind::Unsupported, line));
        }
        Ok(())
    }

    /// A little-endian two's complement integer of any length.
    fn long(&mut self) -> Result<(), PackError> {
        let [len] = self.bytes()?;
        let digits = self.slice(len.into())?;
        if digits.len() > 8 {
            return Err(PackError::malformed(format!(
                "its pickle has an integer of {len} bytes, expected at most 8"
            )));
        }
        let negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..digits.len()].copy_from_slice(digits);
        self.stack.push(Value::Int(i64::from_le_bytes(wide)));
        Ok(())
    }

    fn string(&mut self, len: u64) -> Result<(), PackError> {
        let bytes = self.slice(len)?;
        let text = std::str::from_utf8(bytes).map_err(|error| {
            PackError::malformed("its pickle has a string that is not UTF-8").caused_by(error)
        })?;
        self.stack.push(Value::Str(text));
        Ok(())
    }

    fn tuple(&mut self, len: usize) -> Result<(), PackError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start =
            self.stack.len().checked_sub(len).filter(|&start| start >= floor).ok_or_else(underflow)?;
        let first = self.items.len();
        self.items.extend(self.stack.drain(start..));
        self.stack.push(Value::Tuple(first, len));
        Ok(())
    }

    /// Pushes a new dict.
    pub fn dict(&mut self) {
        self.stack.push(Value::Dict(self.dicts.len()));
        self.dicts.push(Vec::new());
    }

    fn append(&mut self, code: u8) -> Result<(), PackError> {
        if code == opcode::APPEND {
            self.pop()?;
        } else {
            let mark = self.mark()?;
            self.stack.truncate(mark);
        }
        match self.top()? {
            Value::List => Ok(()),
            other => Err(PackError::malformed(format!("its pickle appends to {}", other.kind()))),
        }
    }

    fn set_items(&mut self, code: u8) -> Result<(), PackError> {
        let start = if code == opcode::SETITEM {
            let floor = self.marks.last().copied().unwrap_or(0);
            self.stack.len().checked_sub(2).filter(|&start| start >= floor).ok_or_else(underflow)?
        } else {
            self.mark()?
        };
        let items = self.stack.split_off(start);
        let &Value::Dict(dict) = &self.top()? else {
            return Err(PackError::malformed(format!("its pickle sets items of {}", self.top()?.kind())));
        };
        if !items.len().is_multiple_of(2) {
            return Err(PackError::malformed("its pickle sets a key without a value"));
        }
        self.dicts[dict].extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn put(&mut self, code: u8) -> Result<(), PackError> {
        let slot = match code {
            opcode::BINPUT => self.bytes().map(|[slot]: [u8; 1]| slot.into())?,
            opcode::LONG_BINPUT => u32::from_le_bytes(self.bytes()?),
            // There are fewer entries than instructions.
            _ => self.memo.len() as u32,
        };
        let value = self.top()?;
        self.memo.insert(slot, value);
        Ok(())
    }

    fn get(&mut self, code: u8) -> Result<(), PackError> {
        let slot = match code {
            opcode::BINGET => self.bytes().map(|[slot]: [u8; 1]| slot.into())?,
            _ => u32::from_le_bytes(self.bytes()?),
        };
        let Some(&value) = self.memo.get(&slot) else {
            return Err(PackError::malformed(format!(
                "its pickle recalls memo {slot}, which was never stored"
            )));
        };
        self.stack.push(value);
        Ok(())
    }

    fn slice(&mut self, len: u64) -> Result<&'a [u8], PackError> {
        let left = &self.pickle[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| left.get(..len));
        let Some(taken) = taken else {
            let line = format!("its pickle is cut off: {len} bytes expected, {} left", left.len());
            return Err(PackError::new(PackErrorKind::Truncated, line));
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N as u64)?);
        Ok(array)
    }

    /// Text up to a line feed, which is taken and not returned.
    fn line(&mut self) -> Result<&'a str, PackError> {
        let left = &self.pickle[self.at..];
        let len = left.iter().position(|&byte| byte == b'\n');
        let text = len.and_then(|len| std::str::from_utf8(&left[..len]).ok());
        let Some(text) = text else {
            return Err(PackError::malformed("its pickle has a name that does not end or is not UTF-8"));
        };
        self.at += text.len() + 1;
        Ok(text)
    }

    pub fn top(&self) -> Result<Value<'a>, PackError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.get(floor..).and_then(<[_]>::last).copied().ok_or_else(underflow)
    }

    pub fn pop(&mut self) -> Result<Value<'a>, PackError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn mark(&mut self) -> Result<usize, PackError> {
        self.marks.pop().ok_or_else(underflow)
    }
}

impl Value<'_> {
    /// What this is, for an error's line.
    pub fn kind(self) -> &'static str {
        match self {
            Self::None => "nothing (None)",
            Self::Bool => "a truth value",
            Self::Int(_) => "an integer",
            Self::Float => "a number",
            Self::Str(_) => "a string",
            Self::Tuple(..) => "a tuple",
            Self::List => "a list",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a function or class",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a single tensor",
        }
    }
}

fn underflow() -> PackError {
    PackError::malformed("its pickle takes a value that is not there")
}

fn refused(code: u8) -> PackError {
    match opcode::refused_name(code) {
        Some(name) => {
            let line = format!("its pickle has the instruction {name}, which no tensor file needs: not run");
            PackError::new(PackErrorKind::Refused, line)
        }
        None => PackError::malformed(format!("its pickle has the byte {code:#04x}, which is no instruction")),
    }
}
