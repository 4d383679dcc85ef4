//! Our equivalents of the chat templates that open-instruct names (`--chat_template_name`), which render the
//! same text. Templates with a system prompt are not included.

/// Names of templates, with their text.
const TEMPLATES: [(&str, &str); 5] = [
    (
        "tulu",
        "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\
         {% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\
         {% if not (loop.last and message['role'] == 'assistant') %}{{ '\\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] + eos_token + '\\n' }}{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}",
    ),
    (
        "simple_chat",
        "{% for message in messages %}{% if not loop.first %}{{ '\\n\\n' }}{% endif %}\
         {{ message['role'] | capitalize }}: {{ message['content'] }}{% endfor %}\
         {% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
    ),
    (
        "simple_concat_with_space",
        "{{ messages | map(attribute='content') | join(' ') }}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
    ),
    (
        "simple_concat_with_new_line",
        "{{ messages | map(attribute='content') | join('\\n') }}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
    ),
];

/// Returns the template of a name.
pub(super) fn template(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, template)| *template)
}
