/// A glob: `*` stands for any characters, `?` for one, everything else for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    pub fn new(pattern: &str) -> Pattern {
        Pattern(pattern.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole name matches. Linear but for the last star, to which it falls back.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut star = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((at, taken)) = star else { return false };
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("head.weight", "head.weight", true),
            ("head", "head.weight", false),
            ("*", "anything", true),
            ("*", "", true),
            ("blocks.*.att.key.weight", "blocks.11.att.key.weight", true),
            ("blocks.*.att.key.weight", "blocks.11.ffn.key.weight", false),
            ("blocks.?.att.*", "blocks.1.att.w1", true),
            ("blocks.?.att.*", "blocks.11.att.w1", false),
            ("*key*", "blocks.0.ffn.key.weight", true),
            ("*a*b*c", "xaybzbc", true),
            ("*a*b*c", "xaybz", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), matches, "{pattern} {name}");
        }
    }
}
