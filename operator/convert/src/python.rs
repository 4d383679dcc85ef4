//! TRL's trainers in Python code: configurations, trainers and data sets that are given as literals.
//!
//! ```text
//! training_args = GRPOConfig(beta=0.0, num_generations=16)   -->  trl grpo --beta=0.0 --num_generations=16
//! training_args.beta = RATE                                   -->  --beta=0.1, after RATE = 0.1
//! ```
//!
//! Nothing is executed. An argument that is neither a literal nor the name of one is noted, and becomes a
//! setting with an unknown value.

use std::collections::BTreeMap;

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
const LORA: [(&str, &str); 10] = [
    ("modules_to_save", "lora_modules_to_save"),
    ("target_parameters", "lora_target_parameters"),
    ("task_type", "lora_task_type"),
    ("bias", "lora_bias"),
    ("r", "lora_r"),
    ("lora_alpha", "lora_alpha"),
    ("lora_dropout", "lora_dropout"),
    ("target_modules", "lora_target_modules"),
    ("use_dora", "use_dora"),
    ("use_rslora", "use_rslora"),
];

/// Parameters of `LoraConfig` with its defaults as TRL's flags, whose own defaults differ.
const LORA_DEFAULTS: [(&str, &str); 3] =
    [("r", "--lora_r=8"), ("lora_alpha", "--lora_alpha=8"), ("lora_dropout", "--lora_dropout=0.0")];

/// The default of `BitsAndBytesConfig` for 4 bits, as TRL's flag, whose own default is nf4.
const QUANTIZATION_DEFAULTS: [(&str, &str); 1] = [("bnb_4bit_quant_type", "--bnb_4bit_quant_type=fp4")];

/// Parameters of `BitsAndBytesConfig`, with TRL's flags.
const QUANTIZATION: [(&str, &str); 1] = [("bnb_4bit_use_double_quant", "use_bnb_nested_quant")];

/// Largest number of calls that are parsed, each to its end.
const MAX_CALLS: usize = 256;

/// Returns the launch that a block of Python is equivalent to, with notes on arguments that are not literals.
pub(crate) fn launch(text: &str) -> Option<(Launch, Vec<String>)> {
    let (mut trainer, mut flags, mut notes) = (None, Vec::new(), Vec::new());
    let constants = constants(text);
    let mut configurations = Vec::new();
    for call in calls(text, &constants) {
        let class = call.name.strip_suffix("Config").or_else(|| call.name.strip_suffix("Trainer"));
        let known = class.and_then(|class| CLASSES.iter().find(|(name, _)| *name == class));
        match (known, call.name) {
            (Some((_, own)), name) => {
                trainer.get_or_insert(*own);
                if name.ends_with("Config") {
                    configurations.extend(call.variable);
                    call.settings(&[], &mut flags, &mut notes);
                } else {
                    of_trainer(&call, &mut flags, &mut notes);
                }
            }
            (None, "LoraConfig") => {
                flags.push("--use_peft=True".to_owned());
                call.defaults(&LORA_DEFAULTS, &mut flags);
                call.settings(&LORA, &mut flags, &mut notes);
            }
            (None, "BitsAndBytesConfig") => {
                if call.argument("load_in_4bit") == Some("True") {
                    call.defaults(&QUANTIZATION_DEFAULTS, &mut flags);
                }
                call.settings(&QUANTIZATION, &mut flags, &mut notes);
            }
            (None, "replace") if call.unnamed().next().is_some_and(|of| configurations.contains(&of)) => {
                configurations.extend(call.variable);
                call.settings(&[], &mut flags, &mut notes);
            }
            (None, "load_dataset") => of_dataset(&call, &mut flags),
            _ => {}
        }
    }
    configurations.sort_unstable();
    configurations.dedup();
    for name in configurations {
        assignments(text, name, &constants).settings(&[], &mut flags, &mut notes);
    }
    Some((Launch::new(Project::Trl, trainer?, &flags), notes))
}

/// Returns the literals that are assigned to names of a program at its top level, each of them once.
fn constants(text: &str) -> BTreeMap<&str, &str> {
    let mut constants = BTreeMap::new();
    let mut changed = Vec::new();
    for (target, value) in text.lines().filter_map(assignment) {
        // The name stands before its type, if it has one.
        let name = target.split(':').next().unwrap_or(target).trim_end();
        if is_name(name) && is_literal(value) && constants.insert(name, value).is_some() {
            changed.push(name);
        }
    }
    constants.retain(|name, _| !changed.contains(name));
    constants
}

/// Splits a line `target = value`, without the comment behind it.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (target, value) = line.split_once('=')?;
    let value = value.split(" #").next().unwrap_or(value);
    Some((target.trim_end(), value.trim()))
}

/// Returns the assignments to attributes of a configuration, as if they were arguments of its class.
fn assignments<'a>(text: &'a str, name: &'a str, constants: &BTreeMap<&str, &'a str>) -> Call<'a> {
    let of_line = |line: &'a str| {
        let (target, value) = assignment(line.trim_start())?;
        let attribute = target.strip_prefix(name)?.strip_prefix('.')?;
        is_name(attribute).then(|| (Some(attribute), constants.get(value).copied().unwrap_or(value)))
    };
    let arguments = text.lines().filter_map(of_line).collect();
    Call { name, variable: None, arguments }
}

/// Adds flags for a trainer's model, if given by name, and its reward functions.
fn of_trainer(call: &Call<'_>, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    let model = call.argument("model").or_else(|| call.unnamed().next());
    if let Some(model) = model.filter(|model| is_text(model)) {
        flags.push(format!("--model_name_or_path={model}"));
    }
    if let Some(functions) = call.argument("reward_funcs").or_else(|| call.argument("reward_func")) {
        let names = functions.trim_start_matches('[').trim_end_matches(']').split(',').map(str::trim);
        let is_function = |name: &&str| {
            is_text(name) || (name.starts_with(is_begin_of_name) && name.chars().all(is_of_name))
        };
        let (names, others): (Vec<&str>, Vec<&str>) =
            names.filter(|name| !name.is_empty()).partition(is_function);
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
    let mut unnamed = call.unnamed();
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
    /// Variable to which the result is assigned.
    variable: Option<&'a str>,
    arguments: Vec<(Option<&'a str>, &'a str)>,
}

impl<'a> Call<'a> {
    fn argument(&self, name: &str) -> Option<&'a str> {
        self.arguments.iter().find(|(own, _)| *own == Some(name)).map(|(_, value)| *value)
    }

    /// Iterates over the arguments without a name.
    fn unnamed(&self) -> impl Iterator<Item = &'a str> {
        self.arguments.iter().filter(|(name, _)| name.is_none()).map(|(_, value)| *value)
    }

    /// Adds the flags of those defaults whose arguments are not given.
    fn defaults(&self, defaults: &[(&str, &str)], flags: &mut Vec<String>) {
        let missing = defaults.iter().filter(|(name, _)| self.argument(name).is_none());
        flags.extend(missing.map(|(_, flag)| (*flag).to_owned()));
    }

    /// Adds the named arguments as flags, renamed by `names`.
    fn settings(&self, names: &[(&str, &str)], flags: &mut Vec<String>, notes: &mut Vec<String>) {
        for (name, value) in &self.arguments {
            let Some(name) = name else {
                if value.starts_with("**") {
                    notes.push(format!("{}({value}) is not read", self.name));
                }
                continue;
            };
            if *value == "..." {
                continue;
            }
            let flag = names.iter().find(|(theirs, _)| theirs == name).map_or(*name, |(_, flag)| flag);
            if is_literal(value) {
                flags.push(format!("--{flag}={}", value.split_whitespace().collect::<Vec<_>>().join(" ")));
            } else {
                notes.push(format!("{}({name}={value}) is not a literal", self.name));
                let words: Vec<_> = value.split_whitespace().collect();
                flags.push(format!("--{flag}=${{{}}}", words.join(" ").replace(['{', '}'], "")));
            }
        }
    }
}

/// Finds all calls of relevant names, in the order in which they begin. Names of constants in their arguments
/// are replaced by the literals.
fn calls<'a>(text: &'a str, constants: &BTreeMap<&str, &'a str>) -> Vec<Call<'a>> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(offset) = text[start..].find('(').filter(|_| found.len() < MAX_CALLS) {
        let open = start + offset;
        start = open + 1;
        let begin = text[..open]
            .rfind(|letter| !is_of_name(letter))
            .map_or(0, |end| end + text[end..].chars().next().map_or(1, char::len_utf8));
        let name = text[begin..open].rsplit('.').next().unwrap_or_default();
        let is_relevant = matches!(name, "load_dataset" | "replace");
        if is_relevant || name.ends_with("Config") || name.ends_with("Trainer") {
            let known = |(name, value): (Option<&'a str>, &'a str)| {
                (name, constants.get(value).copied().unwrap_or(value))
            };
            let arguments = arguments(&text[start..]).into_iter().map(known).collect();
            let variable = text[..begin].rsplit('\n').next().and_then(assignment);
            let variable = variable.map(|(target, _)| target.trim()).filter(|target| is_name(target));
            found.push(Call { name, variable, arguments });
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

fn is_name(text: &str) -> bool {
    text.starts_with(is_begin_of_name)
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
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
            "--output_dir=${f(x)}",
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
    fn names_of_literals_attributes_and_copies_of_a_configuration_are_read() {
        let text = "RATE = 2e-6  # the peak\nmodel = 'org/base'\nseen = 1\nseen = 2\n\
                    args = DPOConfig('out', learning_rate=RATE, seed=seen, **more)\nargs.beta = 0.3\n\
                    args.max_steps = count()\nargs = dataclasses.replace(args, max_length=512)\n'a'.replace('b', 'c')\n\
                    DPOTrainer(model, args=args)\nBitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)";
        let (launch, notes) = launch(text).unwrap();
        let flags = [
            "--learning_rate=2e-6",
            "--seed=${seen}",
            "--max_length=512",
            "--model_name_or_path='org/base'",
            "--bnb_4bit_quant_type=fp4",
            "--load_in_4bit=True",
            "--use_bnb_nested_quant=True",
            "--beta=0.3",
            "--max_steps=${count()}",
        ];
        assert_eq!(launch.arguments, flags);
        assert_eq!(notes[..2], ["DPOConfig(seed=seen) is not a literal", "DPOConfig(**more) is not read"]);
    }

    #[test]
    fn classes_of_peft_and_transformers_have_defaults_of_their_own() {
        let flags = |text: &str| launch(&format!("SFTTrainer('org/base')\n{text}")).unwrap().0.arguments;
        let lora = ["--use_peft=True", "--lora_r=8", "--lora_alpha=8", "--lora_dropout=0.0"];
        assert_eq!(flags("LoraConfig()")[1..], lora);
        let given = ["--use_peft=True", "--lora_alpha=8", "--lora_r=4", "--lora_dropout=0.1"];
        assert_eq!(flags("LoraConfig(r=4, lora_dropout=0.1)")[1..], given);
        assert_eq!(flags("BitsAndBytesConfig(load_in_8bit=True)")[1..], ["--load_in_8bit=True"]);
        let nf4 = flags("BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\")");
        assert_eq!(nf4[1..], ["--load_in_4bit=True", "--bnb_4bit_quant_type=\"nf4\""]);
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
