//! TRL's trainers in Python code: configurations, trainers and data sets that are given as literals.
//!
//! ```text
//! training_args = GRPOConfig(beta=0.0, num_generations=16)   -->  trl grpo --beta=0.0 --num_generations=16
//! ```
//!
//! Nothing is executed: an argument that is not a literal is noted.

use crate::launch::{Launch, Project};

/// Names of TRL's classes without `Config` or `Trainer` at the end, with their trainers.
const CLASSES: [(&str, &str); 12] = [
    ("GRPO", "grpo"),
    ("GMPO", "gmpo"),
    ("DPO", "dpo"),
    ("SFT", "sft"),
    ("RLOO", "rloo"),
    ("KTO", "kto"),
    ("CPO", "cpo"),
    ("ORPO", "orpo"),
    ("PPO", "ppo"),
    ("OnlineDPO", "online_dpo"),
    ("Reward", "reward"),
    ("PRM", "prm"),
];

/// Parameters of `LoraConfig`, with TRL's flags.
const LORA: [(&str, &str); 6] = [
    ("r", "lora_r"),
    ("lora_alpha", "lora_alpha"),
    ("lora_dropout", "lora_dropout"),
    ("target_modules", "lora_target_modules"),
    ("use_dora", "use_dora"),
    ("use_rslora", "use_rslora"),
];

/// Largest number of calls that are parsed, each to its end.
const MAX_CALLS: usize = 256;

/// Returns the launch that a block of Python is equivalent to, with notes on arguments that are not literals.
pub(crate) fn launch(text: &str) -> Option<(Launch, Vec<String>)> {
    let (mut trainer, mut flags, mut notes) = (None, Vec::new(), Vec::new());
    for call in calls(text) {
        let class = call.name.strip_suffix("Config").or_else(|| call.name.strip_suffix("Trainer"));
        let known = class.and_then(|class| CLASSES.iter().find(|(name, _)| *name == class));
        match (known, call.name) {
            (Some((_, own)), name) => {
                trainer.get_or_insert(*own);
                if name.ends_with("Config") {
                    call.settings(&[], &mut flags, &mut notes);
                } else {
                    of_trainer(&call, &mut flags, &mut notes);
                }
            }
            (None, "LoraConfig") => {
                flags.push("--use_peft=True".to_owned());
                call.settings(&LORA, &mut flags, &mut notes);
            }
            (None, "load_dataset") => of_dataset(&call, &mut flags),
            _ => {}
        }
    }
    Some((Launch::new(Project::Trl, trainer?, &flags), notes))
}

/// Adds flags for a trainer's model, if given by name, and its reward functions.
fn of_trainer(call: &Call<'_>, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    if let Some(model) = call.argument("model").filter(|model| is_text(model)) {
        flags.push(format!("--model_name_or_path={model}"));
    }
    if let Some(functions) = call.argument("reward_funcs").or_else(|| call.argument("reward_func")) {
        let names = functions.trim_start_matches('[').trim_end_matches(']').split(',').map(str::trim);
        let is_name = |name: &&str| {
            is_text(name) || (name.starts_with(is_begin_of_name) && name.chars().all(is_of_name))
        };
        let (names, others): (Vec<&str>, Vec<&str>) =
            names.filter(|name| !name.is_empty()).partition(is_name);
        let note =
            |other: &&str| format!("{}(reward_funcs=[{other}]) is not the name of a function", call.name);
        notes.extend(others.iter().map(note));
        let names: Vec<_> =
            names.iter().map(|name| format!("'{}'", name.trim_matches(['\'', '"']))).collect();
        if !names.is_empty() {
            flags.push(format!("--reward_funcs=[{}]", names.join(",")));
        }
    }
}

/// Adds flags for the first data set that is loaded: its name, configuration and split.
fn of_dataset(call: &Call<'_>, flags: &mut Vec<String>) {
    if flags.iter().any(|flag| flag.starts_with("--dataset_name=")) {
        return;
    }
    let mut unnamed = call.arguments.iter().filter(|(name, _)| name.is_none()).map(|(_, value)| *value);
    if let Some(name) = unnamed.next().filter(|name| is_text(name)) {
        flags.push(format!("--dataset_name={name}"));
        flags.extend(
            unnamed
                .next()
                .filter(|config| is_text(config))
                .map(|config| format!("--dataset_config={config}")),
        );
        let split = call.argument("split").filter(|split| is_text(split) && !split.contains('['));
        flags.extend(split.map(|split| format!("--dataset_train_split={split}")));
    }
}

/// A call, with the source text of its arguments.
struct Call<'a> {
    name: &'a str,
    arguments: Vec<(Option<&'a str>, &'a str)>,
}

impl<'a> Call<'a> {
    fn argument(&self, name: &str) -> Option<&'a str> {
        self.arguments.iter().find(|(own, _)| *own == Some(name)).map(|(_, value)| *value)
    }

    /// Adds the named arguments as flags, renamed by `names`.
    fn settings(&self, names: &[(&str, &str)], flags: &mut Vec<String>, notes: &mut Vec<String>) {
        for (name, value) in &self.arguments {
            let Some(name) = name else { continue };
            if *value == "..." {
                continue;
            }
            let flag = names.iter().find(|(theirs, _)| theirs == name).map_or(*name, |(_, flag)| flag);
            if is_literal(value) {
                flags.push(format!("--{flag}={}", value.split_whitespace().collect::<Vec<_>>().join(" ")));
            } else {
                notes.push(format!("{}({name}={value}) is not a literal", self.name));
            }
        }
    }
}

/// Finds all calls of relevant names, in the order in which they begin.
fn calls(text: &str) -> Vec<Call<'_>> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(offset) = text[start..].find('(').filter(|_| found.len() < MAX_CALLS) {
        let open = start + offset;
        start = open + 1;
        let begin = text[..open]
            .rfind(|letter| !is_of_name(letter))
            .map_or(0, |end| end + text[end..].chars().next().map_or(1, char::len_utf8));
        let name = text[begin..open].rsplit('.').next().unwrap_or_default();
        if name.ends_with("Config") || name.ends_with("Trainer") || name == "load_dataset" {
            found.push(Call { name, arguments: arguments(&text[start..]) });
        }
    }
    found
}

/// Splits the arguments of a call, up to its closing parenthesis.
fn arguments(text: &str) -> Vec<(Option<&str>, &str)> {
    let mut arguments = Vec::new();
    let (mut depth, mut quote, mut is_comment, mut is_escaped) = (0usize, None, false, false);
    // Begin of the argument, after comments, and its end, before one.
    let (mut begin, mut end) = (None, 0);
    for (index, letter) in text.char_indices() {
        if is_comment {
            is_comment = letter != '\n';
            continue;
        }
        match (quote, letter) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), _) => quote = Some(open).filter(|open| *open != letter),
            (None, '#') => {
                is_comment = true;
                continue;
            }
            (None, ')' | ']' | '}') if depth == 0 => {
                arguments.extend(begin.map(|begin| argument(&text[begin..end])));
                return arguments;
            }
            (None, ',') if depth == 0 => {
                arguments.extend(begin.take().map(|begin| argument(&text[begin..end])));
                continue;
            }
            (None, '\'' | '"') => quote = Some(letter),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if !letter.is_whitespace() {
            begin.get_or_insert(index);
            end = index + letter.len_utf8();
        }
    }
    arguments
}

/// Splits `name=value`; a value alone has no name.
fn argument(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, value)) if name.trim().chars().all(is_of_name) => (Some(name.trim()), value.trim()),
        _ => (None, text.trim()),
    }
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.')
}

fn is_begin_of_name(letter: char) -> bool {
    letter.is_ascii_alphabetic() || letter == '_'
}

fn is_text(value: &str) -> bool {
    let inner =
        |quote: char| value.strip_prefix(quote)?.strip_suffix(quote).map(|text| !text.contains(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(false)
}

/// Whether a value is a literal: a number, a text, True, False, None, or a list or table of them.
fn is_literal(value: &str) -> bool {
    if is_text(value) || matches!(value, "True" | "False" | "None") {
        return true;
    }
    let inner = |open: char, close: char| value.strip_prefix(open)?.strip_suffix(close);
    if let Some(items) = inner('[', ']').or_else(|| inner('{', '}')) {
        let items = items.split([',', ':']).map(str::trim).filter(|item| !item.is_empty());
        return items
            .into_iter()
            .all(|item| is_number(item) || is_text(item) || matches!(item, "True" | "False" | "None"));
    }
    is_number(value)
}

fn is_number(value: &str) -> bool {
    value.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '.'))
        && value.replace('_', "").parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::launch;

    #[test]
    fn configurations_and_trainers_are_flags() {
        let text = "from trl import GRPOConfig\ndata = load_dataset('org/data', split=\"train[:5%]\")\n\
                    args = GRPOConfig(  # a comment (with one, two)\n    ...,\n    beta=0.0, # none\n    loss_type=['sft',\n\
                    'ipo'],\n    max_completion_length=32_768,\n    output_dir=f(x),\n)\n\
                    GRPOTrainer(model=\"org/base\", args=args, reward_funcs=[accuracy_reward, mine.short])";
        let (launch, notes) = launch(text).unwrap();
        assert_eq!(launch.trainer, "grpo");
        let flags = [
            "--dataset_name='org/data'",
            "--beta=0.0",
            "--loss_type=['sft', 'ipo']",
            "--max_completion_length=32_768",
            "--model_name_or_path=\"org/base\"",
            "--reward_funcs=['accuracy_reward','mine.short']",
        ];
        assert_eq!(launch.arguments, flags);
        assert_eq!(notes, ["GRPOConfig(output_dir=f(x)) is not a literal"]);
    }

    #[test]
    fn reward_functions_that_a_page_leaves_open_are_noted() {
        let (launch, notes) = launch("GRPOTrainer(..., reward_funcs=[..., mine, \"org/rm\"])").unwrap();
        assert_eq!(launch.arguments, ["--reward_funcs=['mine','org/rm']"]);
        assert_eq!(notes, ["GRPOTrainer(reward_funcs=[...]) is not the name of a function"]);
    }

    #[test]
    fn other_classes_and_broken_code_start_nothing() {
        assert!(launch("GKDConfig(beta=1)").is_none());
        assert!(launch("x = dict(a=1)").is_none());
        for text in ["GRPOConfig(", "GRPOConfig(a='", "é(GRPOConfig(a=[}", "GRPOConfig(a=\\", "(((", ")"] {
            launch(text);
        }
    }
}
