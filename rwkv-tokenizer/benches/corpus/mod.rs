//! A mixed text for measurements: prose in several languages, code, data, numbers, emoji, white space.
//!
//! All sentences were written for this file. They are put in an order, and filled with names and numbers,
//! by a generator with a fixed seed, so every run measures the same text.

use std::sync::LazyLock;

/// The kinds of text, each with its share in a hundred.
const KINDS: [(usize, Piece); 9] = [
    (32, english),
    (10, words),
    (20, code),
    (9, chinese),
    (7, japanese),
    (6, korean),
    (6, european),
    (6, data),
    (4, chat),
];

type Piece = fn(&mut Source, &mut String);

/// The mixed text, at least `bytes` long.
pub fn mixed(bytes: usize) -> String {
    let mut source = Source(20_230_424);
    let mut text = String::with_capacity(bytes + 4096);
    while text.len() < bytes {
        let mut share = source.below(100);
        for (weight, piece) in KINDS {
            if share < weight {
                piece(&mut source, &mut text);
                break;
            }
            share -= weight;
        }
        text.push_str(if source.below(3) == 0 { "\n\n" } else { "\n" });
    }
    text
}

/// One kind of text alone, at least `bytes` long.
pub fn of(piece: Piece, bytes: usize) -> String {
    let mut source = Source(7);
    let mut text = String::with_capacity(bytes + 4096);
    while text.len() < bytes {
        piece(&mut source, &mut text);
        text.push('\n');
    }
    text
}

/// Pseudo-random numbers, the same in every run.
pub struct Source(u64);

impl Source {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }

    fn choose<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// Appends some of the sentences; `{n}` becomes a number, `{w}` a name.
    fn sentences(&mut self, from: &[&str], names: &[&str], space: &str, text: &mut String) {
        for at in 0..2 + self.below(5) {
            if at > 0 {
                text.push_str(space);
            }
            let mut rest = self.choose(from);
            while let Some((before, after)) = rest.split_once('{') {
                text.push_str(before);
                if after.starts_with('n') {
                    let digits = 1 + self.below(5);
                    let number = self.below(10usize.pow(digits as u32));
                    text.push_str(&number.to_string());
                } else {
                    text.push_str(self.choose(names));
                }
                rest = after.get(2..).unwrap_or_default();
            }
            text.push_str(rest);
        }
    }
}

const NAMES: [&str; 16] = [
    "Margaret",
    "Oluwaseun",
    "the harbour master",
    "Dr. Lindqvist",
    "Tomasz",
    "the committee",
    "Priya",
    "her brother",
    "the old mill",
    "Captain Reyes",
    "the laboratory",
    "Ingeborg",
    "Mr. Hathaway",
    "the northern line",
    "Yusuf",
    "Chloe",
];

/// English prose.
pub fn english(source: &mut Source, text: &mut String) {
    let sentences = [
        "When {w} finally arrived at the station, the last train had already left and the platform was empty.",
        "Nobody had expected the results to be this clear, least of all {w}, who had argued for a second trial.",
        "The river rises every spring, and every spring the people of the valley carry their furniture upstairs.",
        "According to the report, {n} of the {n} participants noticed no difference at all.",
        "\"I don't think that's what she meant,\" said {w}, closing the door quietly.",
        "It is easier to measure the temperature of a star than to explain why the kitchen is always cold.",
        "In 19{n}, the company sold its first engine; by the end of the decade it employed {n} workers.",
        "We walked along the ridge until the fog lifted, and then we saw how close to the edge we had been.",
        "A good index lets the reader find a page without remembering the words that are written on it.",
        "However, the proposal leaves several questions unanswered: who pays, who decides, and for how long?",
        "The bread should rise for at least two hours, or overnight in the refrigerator, before it is shaped.",
        "{w} wrote three letters that winter and sent none of them.",
        "Light from the nearest galaxy takes longer to reach us than our species has existed.",
        "If the pressure drops below {n} millibars, the valve closes automatically and an alarm sounds.",
        "There were oranges on the table, a newspaper from last week, and a note addressed to {w}.",
        "Memory bandwidth, not arithmetic, limits the speed of most language models on ordinary computers.",
        "They're certain it wasn't there yesterday; you'd have noticed it, wouldn't you?",
        "The translation is faithful, although it loses the rhythm that made the original so memorable.",
        "Because the contract was signed in two languages, the lawyers argued for months about a single comma.",
        "Children learn the names of colours long before they agree about where one ends and another begins.",
        "At {n}:{n} the lights went out in the whole district, and for a moment everyone could see the stars.",
        "Please send the completed form, together with a copy of your passport, to the address given below.",
        "The painting had been hanging upside down for {n} years before {w} pointed it out.",
        "Salt, patience and a heavy pan are all that this recipe requires.",
    ];
    source.sentences(&sentences, &NAMES, " ", text);
}

/// Sentences of many different words, the frequent ones most often (Zipf's law), because a text that repeats
/// itself finds everything in the cache.
///
/// The words are those of the World vocabulary, in an order without a meaning.
pub fn words(source: &mut Source, text: &mut String) {
    static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let vocabulary = include_str!("../../vocab/rwkv_vocab_v20230424.txt");
        let literals = vocabulary.lines().filter_map(|line| line.split('\'').nth(1)?.strip_prefix(' '));
        let mut words: Vec<&str> =
            literals.filter(|word| word.len() > 2 && word.chars().all(char::is_lowercase)).collect();
        let mut source = Source(65_529);
        for last in (1..words.len()).rev() {
            words.swap(last, source.below(last + 1));
        }
        words
    });
    for at in 0..8 + source.below(16) {
        if at > 0 {
            text.push_str(if source.below(9) == 0 { ", " } else { " " });
        }
        // The logarithm of the rank is even.
        let rank = (WORDS.len() as f64).powf(source.below(1 << 20) as f64 / (1 << 20) as f64);
        text.push_str(WORDS[rank as usize % WORDS.len()]);
    }
    text.push('.');
}

/// Program text in several languages.
pub fn code(source: &mut Source, text: &mut String) {
    let names = [
        "index",
        "buffer",
        "offset",
        "userName",
        "total_count",
        "node",
        "response",
        "MAX_SIZE",
        "cache_line",
    ];
    let pieces = [
        "pub fn {w}(&self, {w}: usize) -> Option<&[u8]> {\n    let {w} = self.{w}.get({w} + {n})?;\n    Some(&self.data[{w}..])\n}\n",
        "def {w}(self, {w}=None, *args):\n    \"\"\"Return the {w} of this object.\"\"\"\n    if {w} is None:\n        raise ValueError(f\"{w} must be at least {n}\")\n    return self.{w}[{n}:]\n",
        "for (int {w} = 0; {w} < {n}; ++{w}) {\n\t\tif ({w}[i] != NULL) {\n\t\t\tprintf(\"%s: %d\\n\", {w}, {w}->next);\n\t\t}\n\t}\n",
        "const {w} = await fetch(`/api/v{n}/${id}`);\nif (!{w}.ok) {\n  console.error('request failed', {w}.status);\n  return null;\n}\n",
        "SELECT {w}, COUNT(*) AS {w}\nFROM orders\nWHERE created_at > '20{n}-01-01' AND {w} IS NOT NULL\nGROUP BY {w}\nORDER BY 2 DESC LIMIT {n};\n",
        "    // The {w} is checked before the {w} is read, see above.\n    assert_eq!({w}.len(), {n});\n    #[inline]\n",
        "<div class=\"{w}-container\">\n    <span id=\"{w}\">{n}</span>\n    <a href=\"https://example.org/{w}?page={n}\">next</a>\n</div>\n",
        "#include <stdio.h>\n#define {w} {n}\n\nstatic inline uint32_t {w}(const uint8_t *{w}) {\n    return ({w}[0] << 24) | ({w}[1] << 16);\n}\n",
        "                    }\n                }\n            }\n        }\n    }\n}\n",
        "$ git log --oneline | head -n {n}\n$ cargo test --workspace -- --nocapture 2>&1 | grep {w}\n",
    ];
    source.sentences(&pieces, &names, "\n", text);
}

/// Chinese prose.
pub fn chinese(source: &mut Source, text: &mut String) {
    let names = ["王老师", "李明", "这家公司", "研究小组", "他的母亲", "北京", "那座桥"];
    let sentences = [
        "昨天晚上下了一场大雨，今天早上的空气特别新鲜。",
        "{w}花了{n}天的时间才把这本书读完。",
        "模型的参数越多，需要的内存也就越大，但是速度不一定更慢。",
        "如果你有时间的话，我们可以一起去图书馆看看。",
        "据统计，共有{n}人参加了这次活动，比去年增加了一倍。",
        "“你怎么还没走？”{w}问道。",
        "山上的树叶已经变红了，再过几天就会落下来。",
        "请在提交之前检查一下代码，确认所有的测试都已经通过。",
        "{w}说，最重要的不是结果，而是学会提出好的问题。",
        "火车晚点了{n}分钟，站台上的人越来越多。",
    ];
    source.sentences(&sentences, &names, "", text);
}

/// Japanese prose.
pub fn japanese(source: &mut Source, text: &mut String) {
    let names = ["田中さん", "先生", "その町", "研究所", "弟", "コンピューター"];
    let sentences = [
        "雨が止んだので、{w}は自転車で駅まで行くことにした。",
        "この装置は{n}度を超えると自動的に停止します。",
        "祖母の家には古い時計があって、毎朝六時に鳴っていた。",
        "「もう少し待ってください」と{w}が言った。",
        "データを読み込む前に、ファイルの大きさを確認してください。",
        "桜の季節になると、川沿いの道は人でいっぱいになる。",
        "昨日買ったパンはまだテーブルの上に置いてある。",
        "全部で{n}個の問題があり、そのうち半分は解けなかった。",
    ];
    source.sentences(&sentences, &names, "", text);
}

/// Korean prose.
pub fn korean(source: &mut Source, text: &mut String) {
    let names = ["민수", "선생님", "그 회사", "우리 동네", "할머니", "연구팀"];
    let sentences = [
        "어제는 비가 많이 와서 하루 종일 집에 있었다.",
        "{w}는 도서관에서 책을 {n}권이나 빌렸다.",
        "이 프로그램을 실행하려면 메모리가 충분해야 합니다.",
        "내일 아침 일찍 출발하면 점심 전에 도착할 수 있을 것이다.",
        "\"왜 아직도 안 갔어?\"라고 {w}가 물었다.",
        "산 위에서 내려다본 바다는 생각보다 훨씬 푸르렀다.",
        "지난해보다 {n}명이 더 참가했다고 한다.",
    ];
    source.sentences(&sentences, &names, " ", text);
}

/// German, French, Spanish, Russian, Arabic and others.
pub fn european(source: &mut Source, text: &mut String) {
    let names = ["Müller", "François", "Señora Ibáñez", "Анна", "Łukasz", "Ağrı"];
    let sentences = [
        "Als {w} die Tür öffnete, lag der Schnee schon einen halben Meter hoch.",
        "Die Prüfung dauert {n} Minuten; Wörterbücher sind nicht erlaubt.",
        "Où avez-vous laissé les clés ? demanda {w} en cherchant dans ses poches.",
        "L'été dernier, nous avons marché pendant {n} kilomètres le long du canal.",
        "El niño preguntó por qué el mar no se llena nunca si todos los ríos llegan a él.",
        "Мы долго шли по мокрой улице и говорили о книге, которую никто из нас не дочитал.",
        "В {n} году здесь построили мост, и город сразу стал больше.",
        "الطقس جميل اليوم، وسنذهب إلى السوق بعد الظهر.",
        "Wczoraj {w} znalazł na strychu pudełko pełne starych zdjęć.",
        "Ο δρόμος προς το χωριό ήταν κλειστός όλο τον χειμώνα.",
    ];
    source.sentences(&sentences, &names, " ", text);
}

/// Numbers, tables, records, hexadecimal digits.
pub fn data(source: &mut Source, text: &mut String) {
    let names = ["temperature", "north", "A-17", "null", "true", "kg", "2024-03-18T09:41:07Z"];
    let pieces = [
        "{\"id\": {n}, \"name\": \"{w}\", \"values\": [{n}, {n}.{n}, -{n}], \"ok\": true}",
        "| {w}        | {n}      |   {n}.{n} |\n|------------|----------|---------|",
        "{n},{n}.{n},{n},{w},{n}",
        "0x{n}f{n} a{n}c{n} 00 ff {n} deadbeef",
        "{n}.{n}.{n}.{n} - - [{w}] \"GET /{w}/{n} HTTP/1.1\" 200 {n}",
        "{n} + {n} = {n}\t{n} * {n}\t= {n}",
        "--------------------------------------------------------------------------------",
        "                                        {n}          {n}          {n}",
    ];
    source.sentences(&pieces, &names, "\n", text);
}

/// Short messages with emoji.
pub fn chat(source: &mut Source, text: &mut String) {
    let names = ["😀", "👍", "🎉🎉", "❤️", "👩‍💻", "🇯🇵", "😭", "🚀"];
    let sentences = [
        "User: hi, can you help me with this? {w}\n\nAssistant: Of course! What would you like to know?\n\n",
        "omg {w} that was soooo good!!!",
        "see you at {n} {w}{w}",
        "lol no way {w} haha",
        "User: 谢谢 {w}\n\nAssistant: 不客气！{w}\n\n",
        "thx {w} brb...",
    ];
    source.sentences(&sentences, &names, " ", text);
}

/// Texts that make a tokenizer that goes back read most.
pub fn adversarial(bytes: usize) -> Vec<(&'static str, String)> {
    let fill = |piece: &str| piece.repeat(bytes.div_ceil(piece.len()));
    vec![
        ("spaces", fill(&" ".repeat(128))),
        ("spaces_near_miss", fill(&(" ".repeat(127) + "\u{1}"))),
        ("dashes_near_miss", fill(&("-".repeat(79) + "\u{1}"))),
        ("one_byte_tokens", fill("\u{1}\u{2}\u{3}")),
    ]
}
