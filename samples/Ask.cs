using System;
using System.IO;
using Cairn;

/// <summary>
/// Reads a text, keeps the memory, asks it. Arguments: MODEL TEXT QUESTION
/// The build puts it beside Cairn.dll: LD_LIBRARY_PATH=build/release/lib mono build/release/lib/Ask.exe MODEL TEXT QUESTION
/// By hand: mcs -langversion:latest -r:build/release/lib/Cairn.dll -out:build/release/lib/Ask.exe samples/Ask.cs
/// </summary>
static class Ask {
  static void Main(string[] arguments) {
    using (var device = new Device()) using (var model = new Model(device, arguments[0]))
    using (var state = new State(model)) using (var stream = new Cairn.Stream(model)) using (var agent = new State(model)) {
      stream.Read(state, File.ReadAllText(arguments[1]).TrimEnd());
      agent.Restore(state.ToBytes().AsSpan());
      foreach (string piece in stream.Generate(agent, "\nQ: " + arguments[2] + "\nA: ", 64, null, "\n")) Console.Write(piece);
      Console.WriteLine();
    }
  }
}
