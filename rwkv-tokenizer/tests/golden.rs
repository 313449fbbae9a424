//! Fixed texts and their World ids, so that the numbers are proved on any machine.
//!
//! The ids were computed outside of this crate, by looking up ever shorter pieces of the text in a table
//! of the vocabulary's literals.

#![cfg(feature = "world")]

use rwkv_tokenizer::Tokenizer;

const ALL_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

#[rustfmt::skip]
const GOLDEN: &[(&str, &[u8], &[u32])] = &[
    ("empty", b"", &[]),
    ("one letter", b"a", &[98]),
    ("sentence", b"The quick brown fox jumps over the lazy dog.", &[6699, 39418, 37917, 21704, 38828, 31601, 22590, 31261, 21551, 47]),
    ("capitals and digits", b"RWKV-7 has 2.9B parameters in 32 layers (2025).", &[1413, 1184, 46, 56, 21800, 285, 47, 58, 67, 62291, 4596, 3505, 46410, 275, 640, 645, 499]),
    ("korean", "안녕하세요".as_bytes(), &[18815, 3266, 150, 19052, 18777, 18862]),
    ("korean sentence", "오늘은 날씨가 좋아서 산책을 했다.".as_bytes(), &[18851, 18586, 18883, 23007, 18812, 18495, 48306, 18771, 23086, 18951, 18884, 48328, 47]),
    ("chinese", "今天天气很好，我们去公园散步。".as_bytes(), &[10381, 11639, 11639, 13655, 12337, 11685, 19137, 12605, 10402, 10985, 10678, 11423, 13001, 13582, 10080]),
    ("japanese", "昨日、図書館で新しい本を三冊借りました。".as_bytes(), &[13089, 13053, 10079, 11429, 13181, 18074, 10132, 13034, 43345, 13205, 10164, 10256, 10701, 10563, 43436, 43347, 10080]),
    ("russian", "Мы шли домой по мокрой улице.".as_bytes(), &[2774, 2821, 5115, 27982, 32694, 42915, 32756, 32734, 42845, 2803, 48173, 28108, 47]),
    ("arabic", b"\xd8\xa7\xd9\x84\xd8\xb3\xd9\x84\xd8\xa7\xd9\x85 \xd8\xb9\xd9\x84\xd9\x8a\xd9\x83\xd9\x85", &[28211, 2936, 28228, 2949, 32837, 2954, 2947, 2949]),
    ("thai", b"\xe0\xb8\xaa\xe0\xb8\xa7\xe0\xb8\xb1\xe0\xb8\xaa\xe0\xb8\x94\xe0\xb8\xb5\xe0\xb8\x84\xe0\xb8\xa3\xe0\xb8\xb1\xe0\xb8\x9a", &[9627, 9624, 9631, 9627, 9609, 9635, 9603, 9622, 9631, 9615]),
    ("accents", "Où est passé l’été ? Ça alors, voilà Zürich.".as_bytes(), &[80, 2519, 21641, 46772, 343, 9820, 36127, 298, 4943, 98, 37679, 45, 4848, 25809, 50833, 47]),
    ("emoji", "Nice 😀👍🏽!".as_bytes(), &[23956, 33, 3319, 153, 129, 28333, 3319, 144, 190, 34]),
    ("emoji family", b"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\xe2\x80\x8d\xf0\x9f\x91\xa6", &[3319, 146, 169, 9810, 3319, 146, 170, 9810, 3319, 146, 168, 9810, 3319, 146, 167]),
    ("rust", b"fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n}\n", &[1879, 31356, 472, 358, 28352, 8079, 355, 59, 21093, 61, 118, 652, 63, 296, 275, 49, 585, 630, 499, 8149, 487, 106, 125, 340, 277, 285, 499, 48982, 5269, 11, 126, 11]),
    ("python", b"def f(a, b=None):\n\treturn {'a': a, \"b\": b}\n", &[7334, 337, 41, 98, 45, 333, 62, 23960, 501, 260, 42178, 4896, 98, 448, 332, 45, 269, 99, 388, 333, 126, 11]),
    ("json", b"{\"id\": 17, \"tags\": [\"a\", \"b\\n\"], \"ok\": true}", &[2364, 1940, 388, 3490, 45, 269, 27108, 388, 4363, 98, 384, 269, 99, 93, 111, 5191, 269, 2095, 388, 32313, 126]),
    ("chat", b"User: hi\n\nAssistant:", &[24281, 59, 4571, 261, 5585, 41693, 59]),
    ("stop string", b"\n\nUser:", &[261, 24281, 59]),
    ("two line feeds", b"\n\n", &[261]),
    ("carriage return line feed", b"\r\n\r\n", &[19244]),
    ("line feeds", b"\n\n\n\n\n\n\n", &[43907]),
    ("tabs", b"\t\t\t x", &[3320, 355]),
    ("127 spaces", &[b' '; 127], &[65524, 65505]),
    ("128 spaces", &[b' '; 128], &[65529]),
    ("129 spaces", &[b' '; 129], &[65529, 33]),
    ("300 spaces", &[b' '; 300], &[65529, 65529, 65487]),
    ("63 dashes", &[b'-'; 63], &[65495, 65240]),
    ("80 dashes and one", &[b'-'; 81], &[65528, 46]),
    ("equals", &[b'='; 130], &[65518, 65518, 772]),
    ("end of text as text", b"<|endoftext|>", &[61, 125, 25258, 7588, 2318, 125, 63]),
    ("replacement character", b"\xef\xbf\xbd", &[19232]),
    ("nul bytes", b"\x00\x00", &[1, 1]),
    ("high bytes", b"\xff\xff", &[256, 256]),
    ("lone continuation", b"a\x80b", &[98, 129, 99]),
    ("cut character", b"\xe4\xbd", &[3030]),
    ("surrogate bytes", b"\xed\xa0\x80", &[238, 161, 129]),
    ("overlong", b"\xc0\xaf", &[193, 176]),
    ("all bytes", &ALL_BYTES, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 258, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 268, 375, 37, 38, 39, 440, 495, 537, 569, 48, 621, 643, 665, 687, 709, 59, 747, 773, 64, 65, 5449, 5764, 1046, 1113, 1176, 1238, 1318, 1386, 1445, 1526, 1587, 90, 91, 1655, 94, 95, 96, 97, 40881, 1898, 7819, 2019, 8257, 2145, 8758, 2271, 9109, 2374, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 161, 162, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 2421, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 235, 236, 237, 238, 239, 240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255, 256]),
    ("latin supplement", b"\xc2\x80\xc3\xbf", &[2423, 2525]),
    ("quotes", b"\"'\\", &[379, 93]),
    ("url", b"https://example.org/a?b=c&d=%20e", &[34579, 5385, 49131, 47, 8401, 48, 98, 64, 99, 62, 100, 39, 101, 764, 640, 102]),
    ("numbers", b"3.14159265358979 1,000,000 0x7fff", &[52, 47, 634, 635, 712, 685, 655, 709, 699, 284, 45, 620, 49, 45, 620, 49, 283, 121, 56, 7557]),
];

#[test]
fn texts_have_these_ids() {
    let world = Tokenizer::world();
    let mut wrong = Vec::new();
    for (name, text, expected) in GOLDEN {
        let ids = world.encode(text);
        if ids != *expected {
            wrong.push(format!("{name}: found {ids:?}, expected {expected:?}"));
        }
        assert_eq!(world.decode(expected).as_deref(), Ok(*text), "{name}");
        assert_eq!(world.decode_lossy(expected), String::from_utf8_lossy(text), "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn one_buffer_serves_many_texts() {
    let world = Tokenizer::world();
    let (mut ids, mut all) = (Vec::new(), Vec::new());
    for (name, text, expected) in GOLDEN {
        ids.clear();
        world.encode_into(text, &mut ids);
        assert_eq!(ids, *expected, "{name}");
        world.encode_into(text, &mut all);
    }
    assert_eq!(
        all,
        GOLDEN.iter().flat_map(|(_, _, ids)| *ids).copied().collect::<Vec<_>>(),
        "texts are appended"
    );
}
