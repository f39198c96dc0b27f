"""`cairn chat` on a Hugging Face folder: template, streaming, saving, forking, rewinding, refusals.

Usage: chat_test.py PROGRAM FIXTURES    (FIXTURES: the folder with hf/ and tokenizers/)
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, FIXTURES = sys.argv[1:3]
del sys.argv[1:]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- macro text(content) -%}
    {{- content if content is string else content[0].text }}
{%- endmacro -%}
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {{- '<|im_start|>' + message.role + '\\n' + text(message.content)|trim + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def write_model(folder, template):
    """A tiny random checkpoint with a vocabulary of bytes and three special tokens."""
    source = os.path.join(FIXTURES, "hf", "qwen3_5_r3_text")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), folder)
    with open(os.path.join(FIXTURES, "tokenizers", "qwen35", "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["model"]["vocab"] = {token: i for token, i in tokenizer["model"]["vocab"].items() if i < 256}
    tokenizer["model"]["merges"] = []
    tokenizer["added_tokens"] = [{"id": 256 + i, "content": text, "special": True, "normalized": False}
                                 for i, text in enumerate(SPECIALS)]
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template)


class ChatTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = os.path.join(self.folder.name, "model")
        os.mkdir(self.model)
        write_model(self.model, TEMPLATE)

    def tearDown(self):
        self.folder.cleanup()

    def chat(self, *lines, model=None):
        """What the program prints behind each prompt, and its messages."""
        result = subprocess.run([PROGRAM, "chat", model or self.model, "--backend", "cpu", "--max-tokens", "12"],
                                input="".join(line + "\n" for line in lines), capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split("> ")[1:], result.stderr

    def test_the_same_turn_after_rewinding_gives_the_same_answer(self):
        answers, _ = self.chat("hello", "and you?", "/rewind 2", "hello", "and you?", "/quit")
        self.assertEqual(answers[:2], answers[3:5])

    def test_a_saved_talk_goes_on_in_another_process(self):
        path = os.path.join(self.folder.name, "talk.state")
        whole, _ = self.chat("hello", "more", "/quit")
        self.chat("hello", "/save " + path, "/quit")
        loaded, _ = self.chat("/load " + path, "more", "/quit")
        self.assertEqual(loaded[1], whole[1])
        self.assertEqual(os.stat(path + ".talk.json").st_mode & 0o077, 0)

    def test_forks_do_not_know_of_each_other(self):
        alone, _ = self.chat("hello", "left", "/quit")
        both, _ = self.chat("hello", "/fork", "right", "/switch 1", "left", "/quit")
        self.assertEqual(both[4], alone[1])

    def test_a_packed_model_carries_tokenizer_and_template(self):
        packed = os.path.join(self.folder.name, "model.cairn")
        subprocess.run([PROGRAM, "pack", self.model, packed], check=True, capture_output=True, timeout=120)
        self.assertEqual(self.chat("hello", "/quit", model=packed), self.chat("hello", "/quit"))

    def test_what_the_subset_lacks_is_named_and_the_talk_goes_on(self):
        write_model(self.model, "{% include 'x' %}")
        _, errors = self.chat("hello", "/quit")
        self.assertIn("include", errors)
        write_model(self.model, "{{ messages | groupby('role') }}")
        _, errors = self.chat("hello", "/quit")
        self.assertIn("groupby", errors)
        write_model(self.model, "{% if messages %}no end")
        _, errors = self.chat("hello", "/quit")
        self.assertIn("endif", errors)

    def test_a_hostile_template_ends_with_a_message(self):
        grow = "{% set x = 'aaaaaaaaaa' %}" + "{% set x = x + x %}" * 20
        templates = {
            "{{ (4294967296 * 2147483648) % (0 - 1) }}": "64 bits",
            "{{ " + "not " * 200000 + "x }}": "levels",
            "{{ " + "-" * 800000 + "1 }}": "levels",
            "{{ " + "1 if x else " * 80000 + "1 }}": "levels",
            "{% if x %}" + "{% elif x %}" * 80000 + "{% endif %}": "levels",
            "{% set x = [] %}" + "{% set x = [x] %}" * 1000: "levels",
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}": "does not end",
            "{% for i in range(100000) if i in range(100000) %}{% endfor %}": "does not end",
            grow + "{% set y = x.replace('a', x) %}": "64 MiB",
            grow + "{{ [" + "x," * 1000 + "] }}": "64 MiB",
            grow + "".join("{%% set y%d = x %%}" % i for i in range(100)): "512 MiB",
            "{% set x = messages %}" + "{% set x = x + x %}" * 40: "64 MiB",
        }
        for template, message in templates.items():
            write_model(self.model, template)
            _, errors = self.chat("hello", "/quit")
            self.assertIn("chat template: ", errors, template[:100])
            self.assertIn(message, errors, template[:100])

    def test_misused_commands_say_how(self):
        answers, errors = self.chat("/rewind 3", "/switch 9", "/what", "/quit")
        self.assertIn("can go back", errors)
        self.assertIn("memories 1 to 1", errors)
        self.assertIn("/save FILE", answers[2])


if __name__ == "__main__":
    unittest.main()
