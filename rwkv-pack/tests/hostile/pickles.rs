//! Pickles in a good archive: those that attack, those that are no state dict, those that describe no tensor.

use rwkv_pack::PackErrorKind::{Malformed, Refused, Truncated, Unsupported};

use crate::support::numbers;
use crate::support::pth::{Pickler, PthTensor, pth, state_dict, whole};
use crate::{Case, run};

/// A pickle up to the count of a storage, which comes next.
const LONG_STORAGE: &[u8] = b"\x80\x02(X\x07\0\0\0storagectorch\nHalfStorage\nX\x01\0\0\x000X\x03\0\0\0cpu";

/// Longer than any number of a storage.
const LONG_KEY: &str = match str::from_utf8(&[b'0'; 257]) {
    Ok(key) => key,
    Err(_) => panic!("digits"),
};

#[test]
fn pickles() {
    let storages = || [("0", numbers(8))];
    let file = |write: &dyn Fn(&mut Pickler) -> &mut Pickler| {
        let mut pickler = Pickler::new(2);
        write(&mut pickler);
        pth(pickler.finish(), &storages())
    };
    let raw = |bytes: &[u8]| pth(bytes.to_vec(), &storages());
    let dict_of = |write: &dyn Fn(&mut Pickler) -> &mut Pickler| {
        file(&|it| {
            it.op(b"}").text("a");
            write(it).op(b"s")
        })
    };
    let right = || whole("a", "HalfStorage", "0", &[4]);
    let tensor = |change: &dyn Fn(&mut PthTensor<'static>)| {
        let mut tensor = right();
        change(&mut tensor);
        pth(state_dict(2, &[tensor]), &storages())
    };
    let view = |first, shape: &'static [i64], strides: &'static [i64]| {
        tensor(&|it| {
            (it.first, it.shape, it.strides) = (first, shape.to_vec(), strides.to_vec());
        })
    };
    let deep = file(&|it| {
        it.op(b")");
        for _ in 0..100_000 {
            it.op(b"\x85");
        }
        it
    });
    let deep_marks = raw(&[&b"\x80\x02"[..], &[b'('; 100_000]].concat());
    let deep_dicts = file(&|it| {
        for _ in 0..100_000 {
            it.op(b"}X\x01\0\0\0a");
        }
        it.op(b"N");
        for _ in 0..100_000 {
            it.op(b"s");
        }
        it
    });
    // Tuples of two times the one before it: 2^60 leaves, were they copied.
    let bomb = file(&|it| {
        it.op(b")");
        for slot in 0..60 {
            it.op(&[b'q', slot, b'h', slot, 0x86]);
        }
        it
    });
    let memo = file(&|it| it.op(b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff\x86"));
    let long = raw(&[&b"\x80\x02"[..], &b"N".repeat((1 << 22) + 1)].concat());
    let cases: Vec<Case> = vec![
        (
            "os.system",
            file(&|it| it.global("os", "system").text("x").op(b"\x85R")),
            Refused,
            "asks for os.system",
        ),
        ("posix.system", file(&|it| it.global("posix", "system")), Refused, "asks for posix.system"),
        (
            "in a tensor",
            dict_of(&|it| it.global("builtins", "eval").text("1").op(b"\x85R")),
            Refused,
            "builtins.eval",
        ),
        ("stack global", raw(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), Refused, "asks for os.system"),
        ("torch.load", file(&|it| it.global("torch", "load")), Refused, "asks for torch.load"),
        ("class", file(&|it| it.global("torch.nn.modules.linear", "Linear")), Refused, "linear.Linear"),
        ("quantised", file(&|it| it.global("torch", "QInt8Storage")), Refused, "asks for torch.QInt8Storage"),
        ("line break", raw(b"\x80\x02cos\tx\nsys\x1btem\n."), Refused, "asks for os\\tx.sys\\u{1b}tem"),
        ("INST", raw(b"\x80\x02(ios\nsystem\n."), Refused, "the instruction INST"),
        ("OBJ", raw(b"\x80\x02(o."), Refused, "the instruction OBJ"),
        ("NEWOBJ", raw(b"\x80\x02))\x81."), Refused, "the instruction NEWOBJ"),
        ("EXT1", raw(b"\x80\x02\x82\x01."), Refused, "the instruction EXT1"),
        ("protocol 0", raw(b"(dp0\n."), Unsupported, "protocol 0 or 1"),
        ("protocol 6", raw(b"\x80\x06N."), Unsupported, "states protocol 6"),
        ("protocol twice", raw(b"\x80\x02\x80\x02N."), Unsupported, "once, at its beginning"),
        (
            "no instruction",
            raw(b"\x80\x02\x00."),
            Malformed,
            "the byte 0x00, which is no instruction (at offset 0x2)",
        ),
        ("no end", raw(b"\x80\x02N"), Truncated, "its pickle is cut off"),
        ("empty", raw(b""), Unsupported, "or none"),
        ("only a protocol", raw(b"\x80"), Truncated, "its pickle is cut off"),
        ("after the end", raw(b"\x80\x02N.N"), Malformed, "1 bytes after its end"),
        ("two values", raw(b"\x80\x02NN."), Malformed, "leaves 2 values"),
        ("open mark", raw(b"\x80\x02N(."), Malformed, "leaves 1 values"),
        ("underflow", raw(b"\x80\x02\x86."), Malformed, "takes a value that is not there"),
        ("below a mark", raw(b"\x80\x02NN(\x86."), Malformed, "takes a value that is not there"),
        ("no mark", raw(b"\x80\x02t."), Malformed, "takes a value that is not there"),
        ("no memo", raw(b"\x80\x02h\x07."), Malformed, "recalls memo 7"),
        ("endless name", raw(b"\x80\x02cos"), Malformed, "does not end"),
        ("long string", raw(b"\x80\x02X\xff\xff\xff\xffa."), Truncated, "4294967295 bytes expected"),
        (
            "longer string",
            raw(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa."),
            Truncated,
            "bytes expected",
        ),
        ("string not UTF-8", raw(b"\x80\x02X\x01\0\0\0\xff."), Malformed, "not UTF-8"),
        ("long integer", raw(b"\x80\x02\x8a\x09123456789."), Malformed, "an integer of 9 bytes"),
        ("unhashed items", raw(b"\x80\x02NNNs."), Malformed, "sets items of nothing"),
        ("odd items", raw(b"\x80\x02}(Nu."), Malformed, "a key without a value"),
        ("append", raw(b"\x80\x02NNa."), Malformed, "appends to nothing"),
        ("call a string", file(&|it| it.text("x").op(b")R")), Malformed, "calls a string"),
        (
            "call with a list",
            file(&|it| it.global("collections", "OrderedDict").op(b"]R")),
            Malformed,
            "calls with a list",
        ),
        (
            "call with too many",
            file(&|it| it.global("collections", "OrderedDict").op(b"N\x85R")),
            Malformed,
            "calls OrderedDict",
        ),
        ("attributes", file(&|it| it.global("torch", "float16").op(b"}b")), Refused, "sets attributes of"),
        ("persistent id", file(&|it| it.text("x").op(b"Q")), Malformed, "not a tuple of five"),
        ("other id", file(&|it| it.op(b"(NNNNNtQ")), Malformed, "is no storage"),
        ("deep tuple", deep, Unsupported, "holds a tuple, expected a state dict"),
        ("deep marks", deep_marks, Truncated, "its pickle is cut off"),
        (
            "deep dicts",
            deep_dicts,
            Unsupported,
            "its entry a is a dict, expected only tensors: save the inner dict",
        ),
        ("bomb", bomb, Unsupported, "holds a tuple"),
        ("memo", memo, Unsupported, "holds a tuple"),
        ("long program", long, Malformed, "more than 4194304 instructions"),
        ("a number", dict_of(&|it| it.int(3)), Unsupported, "its entry a is an integer"),
        ("a list", dict_of(&|it| it.op(b"](K\x01K\x02eK\x03a")), Unsupported, "its entry a is a list"),
        ("number as key", file(&|it| it.op(b"}K\x01Ns")), Unsupported, "has an integer as a key"),
        ("a tensor alone", file(&|it| it.tensor(&right())), Unsupported, "holds a single tensor"),
        ("no tensors", raw(b"\x80\x02}."), Malformed, "holds no tensors"),
        ("twice", pth(state_dict(2, &[right(), right()]), &storages()), Malformed, "tensor a: occurs twice"),
        ("beyond", view(1, &[4], &[1]), Malformed, "reach out of its storage of 8 bytes"),
        ("far beyond", view(i64::MAX, &[4], &[1]), Malformed, "reach out of"),
        ("strided beyond", view(0, &[2, 2], &[3, 1]), Malformed, "reach out of"),
        ("stride overflow", view(0, &[2, 2], &[i64::MAX, i64::MAX]), Malformed, "reach out of"),
        ("size overflow", view(0, &[i64::MAX, i64::MAX], &[0, 0]), Malformed, "reach out of"),
        ("expanded", view(0, &[1 << 40], &[0]), Unsupported, "repeat elements"),
        ("negative offset", view(-1, &[4], &[1]), Malformed, "storage offset -1"),
        ("negative size", view(0, &[-4], &[1]), Malformed, "size is not positive"),
        ("negative stride", view(3, &[4], &[-1]), Malformed, "stride is not positive"),
        ("ranks", view(0, &[1; 17], &[1; 17]), Malformed, "a tensor of 17 dimensions"),
        ("no stride", view(0, &[4], &[]), Malformed, "1 dimensions and 0 strides"),
        ("storage length", tensor(&|it| it.count = 5), Malformed, "has 8 bytes, the pickle says 10"),
        ("storage overflow", tensor(&|it| it.count = i64::MAX), Malformed, "bytes, the pickle says"),
        (
            "negative long",
            raw(&[LONG_STORAGE, b"\x8a\x01\xfctQ."].concat()),
            Malformed,
            "a storage of -4 elements",
        ),
        ("no digits", raw(&[LONG_STORAGE, b"\x8a\x00tQ."].concat()), Unsupported, "holds a storage"),
        ("negative storage", tensor(&|it| it.count = -4), Malformed, "a storage of -4 elements"),
        (
            "long storage key",
            tensor(&|it| it.key = LONG_KEY),
            Malformed,
            "a key of 257 bytes, expected at most 256",
        ),
        ("storage path", tensor(&|it| it.key = "../data/0"), Malformed, "is not in the archive"),
        ("untyped", tensor(&|it| it.class = "UntypedStorage"), Malformed, "without an element type"),
        ("type of type", tensor(&|it| it.dtype = Some("FloatStorage")), Malformed, "without an element type"),
    ];
    run(&["checkpoint"], cases);
}
